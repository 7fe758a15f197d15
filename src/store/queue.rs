//! The loads that wait for a reader.

use std::collections::VecDeque;

use super::pool::Load;
use crate::{
    ids::{SlotRef, TierId},
    sync::{Condvar, Mutex, lock, wait},
};

/// First in, first out; bounded by the number of slots, since a slot waits for one load at most.
#[derive(Debug)]
pub(super) struct ReadQueue {
    inner: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug)]
struct Waiting {
    loads: VecDeque<Load>,
    limit: usize,
    closed: bool,
}

impl ReadQueue {
    /// A queue for `limit` loads, allocated now.
    pub(super) fn new(limit: usize) -> Self {
        let waiting = Waiting { loads: VecDeque::with_capacity(limit), limit, closed: false };
        Self { inner: Mutex::new(waiting), changed: Condvar::new() }
    }

    /// Queues `load`.
    pub(super) fn push(&self, load: Load) {
        let mut waiting = lock(&self.inner);
        assert!(waiting.loads.len() < waiting.limit, "more loads than slots");
        debug_assert!(!waiting.closed, "a load after closing");
        waiting.loads.push_back(load);
        drop(waiting);
        self.changed.notify_one();
    }

    /// Takes a load back; `false` if a reader has it already.
    pub(super) fn cancel(&self, tier: TierId, slot: SlotRef) -> bool {
        let mut waiting = lock(&self.inner);
        let found = waiting.loads.iter().position(|load| load.tier == tier && load.slot == slot);
        found.and_then(|at| waiting.loads.remove(at)).is_some()
    }

    /// The next load; blocks until there is one. `None` once the queue is closed and empty.
    pub(super) fn next(&self) -> Option<Load> {
        let mut waiting = lock(&self.inner);
        loop {
            if let Some(load) = waiting.loads.pop_front() {
                return Some(load);
            }
            if waiting.closed {
                return None;
            }
            waiting = wait(&self.changed, waiting);
        }
    }

    /// Lets readers end when nothing is left.
    pub(super) fn close(&self) {
        lock(&self.inner).closed = true;
        self.changed.notify_all();
    }
}
