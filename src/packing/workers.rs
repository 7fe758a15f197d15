//! Threads that take jobs in order, and one that hears of each when it is done.

use std::ops::ControlFlow;

use crate::sync::{
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    mpsc, thread,
};

/// More threads than any drive has use for.
pub(super) const MAX_THREADS: u32 = 256;

/// Does the jobs 0 to `jobs` on `threads` threads, each with a buffer of its own, and calls `each` with every outcome, on
/// this thread, in the order they come. Whether it went to the end: `each` may break, and then jobs not begun are not
/// done.
pub(super) fn run<T: Send, B>(
    jobs: usize,
    threads: u32,
    work: impl Fn(usize, &mut Vec<u8>) -> T + Sync,
    mut each: impl FnMut(T) -> ControlFlow<B>,
) -> ControlFlow<B> {
    // Relaxed: both are hints. Outcomes travel through the channel, which orders what was written before them.
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (send, outcomes) = mpsc::sync_channel(threads as usize);
    thread::scope(|scope| {
        for _ in 0..threads {
            let (send, next, stop, work) = (send.clone(), &next, &stop, &work);
            scope.spawn(move || {
                let mut buffer = Vec::new();
                while !stop.load(Relaxed) {
                    let job = next.fetch_add(1, Relaxed);
                    if job >= jobs || send.send(work(job, &mut buffer)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        // Owned by this closure, so that a panic in `each` ends the threads too.
        let outcomes = outcomes;
        for outcome in &outcomes {
            if let ControlFlow::Break(value) = each(outcome) {
                stop.store(true, Relaxed);
                return ControlFlow::Break(value);
            }
        }
        ControlFlow::Continue(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_once() {
        let mut done = Vec::new();
        let flow = run(
            100,
            3,
            |job, _| job,
            |job| {
                done.push(job);
                ControlFlow::<()>::Continue(())
            },
        );
        done.sort_unstable();
        assert!(flow.is_continue() && done == (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_break_leaves_later_jobs_undone() {
        let begun = AtomicUsize::new(0);
        let count = |_, _: &mut Vec<u8>| begun.fetch_add(1, Relaxed);
        assert_eq!(run(10_000, 2, count, |_| ControlFlow::Break(7)), ControlFlow::Break(7));
        assert!(begun.load(Relaxed) < 100);
    }
}
