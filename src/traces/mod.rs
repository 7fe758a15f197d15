//! Routing traces: which experts were asked for, in which order.

mod big_moe;
mod error;
mod json_lines;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader},
    ops::Range,
    path::Path,
};

pub use error::TraceError;

use crate::ids::{ExpertId, LayerId};

/// A line longer than this is not one of a trace.
const MAX_LINE_BYTES: usize = 64 << 20;
/// Ids from here on are no experts: a number that large is damage.
const MAX_EXPERTS: u32 = 1 << 16;
/// More layers than any model has.
const MAX_LAYERS: u32 = 1 << 16;
/// More accesses than can be replayed in memory.
const MAX_ACCESSES: usize = 1 << 28;

/// A layer that occurs in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceLayer {
    /// The layer.
    pub layer: LayerId,
    /// How many experts it has: as the trace says, or one more than the largest that occurs.
    pub experts: u32,
}

/// The experts that one layer needed for one forward, each once, in order of first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest<'a> {
    /// The forward: in decoding, the token.
    pub forward: u64,
    /// The layer.
    pub layer: LayerId,
    /// At least one, none twice.
    pub experts: &'a [ExpertId],
}

/// Requests in the order they were made. Held in memory whole: 4 bytes for each access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    layers: Vec<TraceLayer>,
    requests: Vec<(u64, LayerId, Range<usize>)>,
    experts: Vec<ExpertId>,
    forwards: u64,
}

impl Trace {
    /// Reads a trace file. The format is told from its first line:
    ///
    /// * `{"tok": n, "layers": [[expert ids], …]}`, a line for each token;
    /// * `{"turn": n, "layer": l, "experts": […], …}`, a line for each layer and forward, as
    ///   [`RouteRecorder`](crate::RouteRecorder) writes it;
    /// * `{"c": call, "l": layer, "s": [batch, tokens, k], "i": [expert ids]}`, a line for each router call, after a line
    ///   with `"meta"`: mlx-bun's;
    /// * comma-separated `turn,phase,step,layer,slot,expert,…` after comments that begin with `#`: BigMoeOnEdge's. Of
    ///   these, decoding alone (phase 1) is read, if there is any.
    ///
    /// # Errors
    /// A file that cannot be read; a line that is none of these, by its number, or that names an impossible layer or
    /// expert; a trace without requests. A last line that lacks its end is left out if it makes no sense, since a
    /// recorder that is killed leaves one.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let open = |source| TraceError::Io { path: path.to_owned(), source };
        Self::parse(BufReader::new(File::open(path).map_err(open)?)).map_err(|error| error.of_file(path))
    }

    /// [`Trace::read`] from memory.
    ///
    /// # Errors
    /// As [`Trace::read`].
    pub fn from_text(text: &str) -> Result<Self, TraceError> {
        Self::parse(text.as_bytes())
    }

    fn parse(mut reader: impl BufRead) -> Result<Self, TraceError> {
        let mut builder = Builder::default();
        let mut table = None;
        let mut line = Vec::new();
        let mut lines = 0;
        loop {
            lines += 1;
            line.clear();
            let read = std::io::Read::take(&mut reader, MAX_LINE_BYTES as u64 + 1)
                .read_until(b'\n', &mut line)
                .map_err(|source| TraceError::Io { path: Path::new("").into(), source })?;
            if read == 0 {
                break;
            }
            if line.len() > MAX_LINE_BYTES {
                return Err(TraceError::Line {
                    line: lines,
                    what: format!("longer than {MAX_LINE_BYTES} bytes"),
                });
            }
            let torn = line.last() != Some(&b'\n');
            let parsed = match std::str::from_utf8(&line) {
                Err(_) => Err("not UTF-8".into()),
                Ok(text) if text.trim().is_empty() => Ok(()),
                Ok(text) if text.trim_start().starts_with('{') && table.is_none() => {
                    json_lines::read(text, &mut builder)
                }
                Ok(text) => table.get_or_insert_with(big_moe::Table::default).read(text.trim_end()),
            };
            match parsed {
                Err(_) if torn && (!builder.requests.is_empty() || table.is_some()) => {}
                other => other.map_err(|what| TraceError::Line { line: lines, what })?,
            }
        }
        if let Some(table) = table {
            table.finish(&mut builder).map_err(|what| TraceError::Line { line: lines, what })?;
        }
        builder.finish()
    }

    /// The layers that occur, ascending.
    #[must_use]
    pub fn layers(&self) -> &[TraceLayer] {
        &self.layers
    }

    /// How many forwards (in decoding: tokens) there are.
    #[must_use]
    pub const fn forwards(&self) -> u64 {
        self.forwards
    }

    /// How many requests there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none. A trace that was read has some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// How many experts are asked for, in all requests together.
    #[must_use]
    pub fn accesses(&self) -> usize {
        self.experts.len()
    }

    /// The most experts that one request asks for.
    #[must_use]
    pub fn largest_request(&self) -> usize {
        self.requests.iter().map(|(.., range)| range.len()).max().unwrap_or(0)
    }

    /// The requests, in order.
    pub fn requests(&self) -> impl ExactSizeIterator<Item = TraceRequest<'_>> + Clone + '_ {
        self.requests.iter().map(|(forward, layer, range)| TraceRequest {
            forward: *forward,
            layer: *layer,
            experts: &self.experts[range.clone()],
        })
    }

    /// The forwards of a range (by order, from 0), with the same layers.
    #[must_use]
    pub fn part(&self, forwards: Range<u64>) -> Self {
        let mut builder = Builder {
            counts: self.layers.iter().map(|l| (l.layer.0, l.experts)).collect(),
            ..Builder::default()
        };
        for request in self.requests().filter(|request| forwards.contains(&request.forward)) {
            builder.push(request.forward - forwards.start, request.layer, request.experts);
        }
        builder.trace()
    }
}

/// Collects requests, and checks them.
#[derive(Debug, Default)]
struct Builder {
    counts: BTreeMap<u32, u32>,
    requests: Vec<(u64, LayerId, Range<usize>)>,
    experts: Vec<ExpertId>,
    /// The trace's own number of the last forward, and ours.
    forward: Option<(u64, u64)>,
}

impl Builder {
    /// Our number for the trace's forward `named`: a new one whenever the name changes, or the layers start over.
    fn forward(&mut self, named: u64, layer: u32) -> u64 {
        let again = self.requests.last().is_some_and(|(_, last, _)| layer <= last.0);
        let forward = match self.forward {
            Some((name, forward)) if name == named && !again => forward,
            Some((_, forward)) => forward + 1,
            None => 0,
        };
        self.forward = Some((named, forward));
        forward
    }

    /// Adds a request for `ids`, of which those named again are left out.
    fn add(&mut self, forward: u64, layer: u32, ids: &[u32]) -> Result<(), String> {
        check(layer, ids)?;
        if self.experts.len() + ids.len() > MAX_ACCESSES {
            return Err(format!("more than {MAX_ACCESSES} accesses"));
        }
        let mut experts: Vec<ExpertId> = Vec::with_capacity(ids.len().min(64));
        let mut seen = std::collections::HashSet::new();
        experts.extend(ids.iter().filter(|&&id| seen.insert(id)).map(|&id| ExpertId(id)));
        if !experts.is_empty() {
            self.push(forward, LayerId(layer), &experts);
        }
        Ok(())
    }

    fn push(&mut self, forward: u64, layer: LayerId, experts: &[ExpertId]) {
        let most = experts.iter().map(|expert| expert.0 + 1).max().unwrap_or(0);
        let count = self.counts.entry(layer.0).or_default();
        *count = most.max(*count);
        let start = self.experts.len();
        self.experts.extend_from_slice(experts);
        self.requests.push((forward, layer, start..self.experts.len()));
    }

    fn trace(self) -> Trace {
        let layers =
            self.counts.iter().map(|(&layer, &experts)| TraceLayer { layer: LayerId(layer), experts });
        let mut forwards = 0;
        let mut last = None;
        for &(forward, ..) in &self.requests {
            forwards += u64::from(last != Some(forward));
            last = Some(forward);
        }
        Trace { layers: layers.collect(), forwards, requests: self.requests, experts: self.experts }
    }

    fn finish(self) -> Result<Trace, TraceError> {
        if self.requests.is_empty() {
            return Err(TraceError::Empty);
        }
        Ok(self.trace())
    }
}

fn check(layer: u32, ids: &[u32]) -> Result<(), String> {
    if layer >= MAX_LAYERS {
        return Err(format!("layer {layer}: no model has more than {MAX_LAYERS} layers"));
    }
    match ids.iter().find(|&&id| id >= MAX_EXPERTS) {
        Some(id) => {
            Err(format!("expert {id} of layer {layer}: no layer has more than {MAX_EXPERTS} experts"))
        }
        None => Ok(()),
    }
}
