//! The reader threads.

use std::{any::Any, io, panic::AssertUnwindSafe, time::Instant};

use super::{
    checks::Checks,
    error::LoadError,
    queue::ReadQueue,
    read::{self, ReadTally},
};
use crate::{
    ids::{ExpertKey, SlotRef, TierId},
    memory::LatchedBank,
    sources::ExpertSource,
    sync::{Arc, Mutex, lock, thread},
};

/// One expert to read into one slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) key: ExpertKey,
    pub(crate) tier: TierId,
    pub(crate) slot: SlotRef,
}

/// How a load ended.
#[derive(Debug)]
pub(crate) struct Landing {
    pub(crate) load: Load,
    pub(crate) result: Result<(), LoadError>,
    pub(crate) tally: ReadTally,
    /// From the first read to the last, by the reader's own clock: no waiting in the queue.
    pub(crate) service_ns: u64,
}

/// Where loads go when they have ended. Called by reader threads, without any lock of the store.
pub(crate) trait LoadSink: Send + Sync {
    /// Takes the outcome of a load that was submitted and not cancelled. Called once for each.
    fn landed(&self, landing: Landing);
}

/// A fixed number of threads that read experts into slots.
#[derive(Debug)]
pub(crate) struct ReaderPool {
    queue: Arc<ReadQueue>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl ReaderPool {
    /// Starts `readers` threads for at most `limit` waiting loads.
    ///
    /// # Errors
    /// If the system refuses a thread; those already started end.
    pub(crate) fn start(
        source: &Arc<dyn ExpertSource>,
        banks: &Arc<[LatchedBank]>,
        sink: &Arc<dyn LoadSink>,
        checks: Checks,
        readers: u32,
        limit: usize,
    ) -> io::Result<Self> {
        let checks = Arc::new(checks);
        let pool = Self { queue: Arc::new(ReadQueue::new(limit)), threads: Mutex::default() };
        for reader in 0..readers {
            let (source, banks, sink) = (Arc::clone(source), Arc::clone(banks), Arc::clone(sink));
            let (queue, checks) = (Arc::clone(&pool.queue), Arc::clone(&checks));
            let spawned = thread::Builder::new()
                .name(format!("streamed-experts-read-{reader}"))
                .spawn(move || serve(&queue, &*source, &banks, &checks, &*sink));
            match spawned {
                Ok(thread) => lock(&pool.threads).push(thread),
                Err(error) => {
                    pool.close();
                    return Err(error);
                }
            }
        }
        Ok(pool)
    }

    /// Queues a load. The caller has the slot for nothing else until it lands or is cancelled.
    pub(crate) fn submit(&self, load: Load) {
        self.queue.push(load);
    }

    /// Takes a queued load back. `false`: a reader has it, and it will land.
    pub(crate) fn cancel(&self, tier: TierId, slot: SlotRef) -> bool {
        self.queue.cancel(tier, slot)
    }

    /// Finishes what is queued and waits for the readers to end. Does nothing the second time.
    pub(crate) fn close(&self) {
        self.queue.close();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for reader in threads {
            // A source may own the last handle and drop it on a reader; that one ends by itself.
            if reader.thread().id() != thread::current().id() {
                let _ = reader.join();
            }
        }
    }
}

fn serve(
    queue: &ReadQueue,
    source: &dyn ExpertSource,
    banks: &[LatchedBank],
    checks: &Checks,
    sink: &dyn LoadSink,
) {
    while let Some(load) = queue.next() {
        sink.landed(perform(source, banks, checks, load));
    }
}

fn perform(source: &dyn ExpertSource, banks: &[LatchedBank], checks: &Checks, load: Load) -> Landing {
    let mut tally = ReadTally::default();
    let mut service_ns = 0;
    // The tally may be short after a panic, and the slot holds part of an expert: it is freed, never leased.
    let caught = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut filling = banks[load.tier.index()].fill(load.slot.slot);
        filling.poison();
        let began = Instant::now();
        let result = read::read_expert(source, load.key, filling.bytes(), &mut tally);
        service_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        result.and_then(|()| checks.check(source, load.tier, load.key, filling.bytes()))
    }));
    let result = caught
        .unwrap_or_else(|panic| Err(LoadError::Panicked { key: load.key, message: message(panic.as_ref()) }));
    Landing { load, result, tally, service_ns }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}
