//! Three queues, first in, first out.

use std::collections::VecDeque;

use super::{CachePolicy, Evictable, ExpertNumbering, PolicyScope, Verdict};
use crate::ids::ExpertKey;

/// Requests beyond this many are not told apart.
const MOST_REQUESTS: u8 = 3;

/// S3-FIFO (Yang et al., SOSP 2023), for each layer: what is new enters a small queue (a tenth of the slots) and leaves
/// it for the main queue if it was asked for twice since, or is given up; the main queue gives up what was not asked for
/// in a whole turn. What the small queue gave up enters the main queue if it comes back soon. Never bypasses.
///
/// An expert that may not be evicted when its turn has come goes to the end of its queue.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    numbering: ExpertNumbering,
    experts: Box<[Queued]>,
    layers: Box<[Queues]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Queued {
    queue: Queue,
    requests: u8,
    /// The number of the layer's eviction that took it from the small queue; 0 if none did.
    given_up: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Queue {
    #[default]
    None,
    Small,
    Main,
}

#[derive(Clone, Debug)]
struct Queues {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    slots: usize,
    evictions: u64,
}

impl S3Fifo {
    /// A policy for `scope`. Allocates 16 bytes for each expert and 8 for each slot.
    #[must_use]
    pub fn new(scope: &PolicyScope<'_>) -> Self {
        let numbering = ExpertNumbering::new(scope);
        let layers = scope.layers.iter().map(|layer| {
            let slots = layer.resident_slots as usize;
            let queue = || VecDeque::with_capacity(slots + 1);
            Queues { small: queue(), main: queue(), slots, evictions: 0 }
        });
        Self { layers: layers.collect(), experts: vec![Queued::default(); numbering.len()].into(), numbering }
    }

    /// [`S3Fifo::new`] as a factory for a manager.
    #[must_use]
    pub fn boxed(scope: &PolicyScope<'_>) -> Box<dyn CachePolicy> {
        Box::new(Self::new(scope))
    }

    fn place(&self, key: ExpertKey) -> Option<(usize, usize)> {
        self.numbering.place(key)
    }

    /// The oldest of the small queue that was not asked for twice. Those that were go to the main queue.
    fn leaving_small(&mut self, layer: usize, evictable: &dyn Evictable) -> Option<ExpertKey> {
        let Self { numbering, experts, layers } = self;
        let queues = &mut layers[layer];
        for _ in 0..queues.small.len() {
            let number = queues.small.pop_front()?;
            let expert = &mut experts[number as usize];
            let key = numbering.key_in(layer, number as usize);
            if expert.requests > 1 {
                *expert = Queued { queue: Queue::Main, requests: 0, ..*expert };
                queues.main.push_back(number);
            } else if evictable.contains(key) {
                queues.small.push_front(number);
                return Some(key);
            } else {
                queues.small.push_back(number);
            }
        }
        None
    }

    /// The oldest of the main queue that was not asked for since its last turn.
    fn leaving_main(&mut self, layer: usize, evictable: &dyn Evictable) -> Option<ExpertKey> {
        let Self { numbering, experts, layers } = self;
        let queues = &mut layers[layer];
        for _ in 0..queues.main.len() * (usize::from(MOST_REQUESTS) + 1) {
            let number = queues.main.pop_front()?;
            let expert = &mut experts[number as usize];
            let key = numbering.key_in(layer, number as usize);
            if expert.requests == 0 && evictable.contains(key) {
                queues.main.push_front(number);
                return Some(key);
            }
            expert.requests = expert.requests.saturating_sub(1);
            queues.main.push_back(number);
        }
        None
    }
}

impl CachePolicy for S3Fifo {
    fn accessed(&mut self, key: ExpertKey, _hit: bool) {
        if let Some(number) = self.numbering.number(key) {
            let expert = &mut self.experts[number];
            expert.requests = (expert.requests + 1).min(MOST_REQUESTS);
        }
    }

    fn inserted(&mut self, key: ExpertKey) {
        let Some((layer, number)) = self.place(key) else { return };
        let (expert, queues) = (&mut self.experts[number], &mut self.layers[layer]);
        let Ok(listed) = u32::try_from(number) else { return };
        if expert.queue != Queue::None {
            return;
        }
        let back_soon = expert.given_up > 0 && queues.evictions - expert.given_up < queues.slots as u64;
        let queue = if back_soon { Queue::Main } else { Queue::Small };
        *expert = Queued { queue, ..Queued::default() };
        if back_soon { &mut queues.main } else { &mut queues.small }.push_back(listed);
    }

    fn removed(&mut self, key: ExpertKey) {
        let Some((layer, number)) = self.place(key) else { return };
        let (expert, queues) = (&mut self.experts[number], &mut self.layers[layer]);
        queues.evictions += 1;
        let given_up = if expert.queue == Queue::Small { queues.evictions } else { 0 };
        let queue = if expert.queue == Queue::Small { &mut queues.small } else { &mut queues.main };
        if let Some(at) = queue.iter().position(|&listed| listed as usize == number) {
            queue.remove(at);
        }
        *expert = Queued { given_up, ..Queued::default() };
    }

    fn victim(&mut self, _incoming: Option<ExpertKey>, evictable: &dyn Evictable) -> Verdict {
        let Some(layer) = self.numbering.layer(evictable.layer()) else { return Verdict::Bypass };
        let queues = &self.layers[layer];
        let small_first = queues.small.len() >= (queues.slots / 10).max(1);
        let victim = if small_first {
            self.leaving_small(layer, evictable).or_else(|| self.leaving_main(layer, evictable))
        } else {
            self.leaving_main(layer, evictable).or_else(|| self.leaving_small(layer, evictable))
        };
        victim.map_or(Verdict::Bypass, Verdict::Evict)
    }
}
