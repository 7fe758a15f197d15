//! What the executor asks of a compute family.

use std::fmt;

use crate::{residency::Lease, routing::Job};

/// A compute family at work on one layer.
///
/// `submit` may return before the work is done; `fence` returns when nothing submitted reads a slot any more.
pub(crate) trait Forward {
    /// Whether each miss is submitted as it lands (host) or all of them at once (a GPU).
    fn each_miss(&self) -> bool;

    /// Starts the jobs at `positions` of the wave, which are the positions of their experts in the lease.
    fn submit(&mut self, lease: &Lease, wave: &[Job], positions: &[usize]) -> Result<(), ComputeError>;

    /// Blocks until all that was submitted is done.
    fn fence(&mut self) -> Result<(), ComputeError>;
}

/// What a compute family answered when it could not do its work.
#[derive(Debug)]
pub struct ComputeError(Box<dyn std::error::Error + Send + Sync>);

impl ComputeError {
    pub(crate) fn new(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(source.into())
    }
}

impl fmt::Display for ComputeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for ComputeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
