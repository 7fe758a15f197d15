//! The one place that names thread primitives, so that a model checker can take their place.

pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, atomic, mpsc};
pub(crate) use std::thread;
use std::time::Duration;

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
