//! The one place that names thread primitives, so that a model checker can take their place: under
//! `--cfg streamed_experts_loom` those with which threads order one another are loom's (tools/model-check.sh).

use std::time::Duration;

pub(crate) use std::sync::{Arc, PoisonError, Weak, mpsc};

#[cfg(not(streamed_experts_loom))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};

#[cfg(streamed_experts_loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic};

#[cfg(streamed_experts_loom)]
pub(crate) mod thread {
    pub(crate) use loom::thread::{Builder, JoinHandle, current};
    // Of what is no model: packing, calibration, and other tests.
    #[allow(unused_imports)]
    pub(crate) use std::thread::{scope, sleep};
}

/// A counter that orders nothing: not for a model checker, whose own cannot be `static`.
pub(crate) type Numbers = std::sync::atomic::AtomicU64;

/// Locks `mutex` even if a thread panicked while it held it.
///
/// Everything behind our locks is changed in steps that leave it consistent, so a panic elsewhere (a user's policy,
/// a source) must not make the table unusable.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `condvar` as [`lock`] locks. Wakes now and then for no reason: the caller checks its condition again.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// [`wait`], but not longer than `time`. Wakes now and then for no reason, as well.
pub(crate) fn wait_for<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}
