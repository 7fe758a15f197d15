//! Ending waits from another thread.

use std::fmt;

use crate::sync::{
    Arc, Mutex, Weak,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
    lock,
};

/// Ends the waits of every request and lease that was made with it. Cheap to clone; all clones are one token.
///
/// A token is cancelled once and for ever. Waits that have ended are not affected, and neither are experts that are
/// in memory: cancelling changes when something is known, never what is read.
#[derive(Clone, Default)]
pub struct CancelToken {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    cancelled: AtomicBool,
    watchers: Mutex<Vec<Weak<dyn Wake>>>,
}

/// Somebody whose waiters look at tokens.
pub(super) trait Wake: Send + Sync {
    /// Wakes every waiter, after any check it is in the middle of.
    fn wake_all(&self);
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish()
    }
}

impl CancelToken {
    /// A token that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels. May be called from any thread; takes the locks of the managers that have seen the token, briefly.
    pub fn cancel(&self) {
        // Release pairs with the Acquire of `is_cancelled`. No wakeup is lost: a waiter looks under the lock that
        // `wake_all` takes after this store.
        self.shared.cancelled.store(true, Release);
        for watcher in &*lock(&self.shared.watchers) {
            if let Some(watcher) = watcher.upgrade() {
                watcher.wake_all();
            }
        }
    }

    /// Whether it has been cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        // Acquire pairs with the Release of `cancel`.
        self.shared.cancelled.load(Acquire)
    }

    /// Lets `cancel` wake this watcher. Allocates the first time a token meets a watcher.
    pub(super) fn watch(&self, watcher: &Weak<dyn Wake>) {
        let mut watchers = lock(&self.shared.watchers);
        if !watchers.iter().any(|known| known.ptr_eq(watcher)) {
            watchers.retain(|known| known.strong_count() > 0);
            watchers.push(watcher.clone());
        }
    }
}
