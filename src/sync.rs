//! The one place that names thread primitives, so that a model checker can take their place.

pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};

/// Locks `mutex` even if a thread panicked while it held it.
///
/// Everything behind our locks is changed in steps that leave it consistent, so a panic elsewhere (a user's policy,
/// a source) must not make the table unusable.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
