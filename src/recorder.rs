//! Writes the routes that go by.

use std::{
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use crate::{ids::LayerId, routing::Routes};

/// How much a recorder may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecorderLimits {
    /// The file is never longer than this. Default 256 MiB.
    pub file_bytes: u64,
    /// Whether the routers' weights are written too: it triples the file. Default no.
    pub weights: bool,
}

impl Default for RecorderLimits {
    fn default() -> Self {
        Self { file_bytes: 256 << 20, weights: false }
    }
}

/// Writes routes to a file that [`Trace::read`](crate::Trace::read) reads: a line for each layer and forward,
/// `{"turn":0,"layer":3,"rows":1,"experts":[7,2],"weights":[0.5,0.25]}`, the experts of all rows one after another in rank
/// order. Weights that are not finite are written as null.
///
/// Each line is one write to the file, so a process that dies loses the line it was writing at most; a system that dies
/// may lose what it had not written to disk. Blocks as long as the system takes the line. A line that would pass the
/// limit is not written, nor is any later one.
#[derive(Debug)]
pub struct RouteRecorder {
    file: File,
    path: PathBuf,
    limits: RecorderLimits,
    written_bytes: u64,
    full: bool,
    line: String,
}

/// A trace that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: cannot {action} the trace", path = path.display())]
pub struct RecorderError {
    /// The file.
    pub path: PathBuf,
    /// What was tried.
    pub action: &'static str,
    /// What the system answered.
    pub source: io::Error,
}

impl RouteRecorder {
    /// Makes the file.
    ///
    /// # Errors
    /// If there is one already, or the system does not let it be made.
    pub fn create(path: impl AsRef<Path>, limits: RecorderLimits) -> Result<Self, RecorderError> {
        let path = path.as_ref();
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        let file = file.map_err(|source| RecorderError { path: path.to_owned(), action: "make", source })?;
        Ok(Self { file, path: path.to_owned(), limits, written_bytes: 0, full: false, line: String::new() })
    }

    /// Writes the routes of one layer in one forward (`turn`: any number that rises from forward to forward). Whether
    /// they were written; `false` once the limit is reached.
    ///
    /// # Errors
    /// If the system does not take the line. The recorder writes nothing more then, because the file may end within a
    /// line.
    pub fn record(&mut self, turn: u64, layer: LayerId, routes: &Routes) -> Result<bool, RecorderError> {
        if self.full {
            return Ok(false);
        }
        self.format(turn, layer, routes);
        let line_bytes = self.line.len() as u64;
        if line_bytes > self.limits.file_bytes - self.written_bytes {
            self.full = true;
            return Ok(false);
        }
        if let Err(source) = self.file.write_all(self.line.as_bytes()) {
            self.full = true;
            return Err(RecorderError { path: self.path.clone(), action: "write", source });
        }
        self.written_bytes += line_bytes;
        Ok(true)
    }

    /// Bytes written.
    #[must_use]
    pub const fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Whether nothing more will be written.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.full
    }

    fn format(&mut self, turn: u64, layer: LayerId, routes: &Routes) {
        let line = &mut self.line;
        line.clear();
        // Writing to a string cannot fail.
        let _ =
            write!(line, "{{\"turn\":{turn},\"layer\":{},\"rows\":{},\"experts\":[", layer.0, routes.rows());
        for (position, expert) in routes.experts().iter().enumerate() {
            let _ = write!(line, "{}{}", if position > 0 { "," } else { "" }, expert.0);
        }
        if self.limits.weights {
            line.push_str("],\"weights\":[");
            for (position, weight) in routes.weights().iter().enumerate() {
                line.push_str(if position > 0 { "," } else { "" });
                let _ = if weight.is_finite() { write!(line, "{weight}") } else { write!(line, "null") };
            }
        }
        line.push_str("]}\n");
    }
}
