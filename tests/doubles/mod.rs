//! A source in memory whose every expert has its own bytes, and whose reads do what a test says.
#![allow(dead_code, unreachable_pub, missing_debug_implementations, reason = "each test file uses its part")]

use std::{
    fmt, io,
    path::Path,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use streamed_experts::{
    Budget, CachePolicy, ExpertGeometry, ExpertId, ExpertKey, ExpertSource, FileId, LayerId, Lease, Lru,
    ManagerOptions, Part, PolicyScope, Projection, Quantisation, ResidencyManager, ResidencyPlan, Segment,
    SlotLayout, SparseLayer, Tier, TierId,
};

/// What one call of `read_at` does.
pub enum Read {
    /// Reads all that was asked for.
    Full,
    /// Reads so much of it.
    Short(usize),
    /// Fails.
    Fail(io::ErrorKind),
    /// Finds the end of the file.
    End,
    /// Claims to have read so much, whatever was asked for.
    Claim(usize),
    /// Panics.
    Panic,
}

type Behaviour = Box<dyn Fn(ExpertKey) -> Read + Send + Sync>;

pub struct TestSource {
    tiers: Vec<Tier>,
    pub layers: Vec<SparseLayer>,
    pub segments: Vec<Vec<Segment>>,
    /// An expert that it claims not to have.
    pub without: Option<ExpertKey>,
    record_bytes: Vec<u64>,
    behaviour: Behaviour,
    /// The drive of each file; those beyond its end are on drive 0.
    pub drives: Vec<u64>,
    /// Whether file n + 100 has the same bytes as file n. Its reads are told by layer n + 100.
    pub mirrored: bool,
}

/// What a mirror's file number is more than that of the first copy.
pub const MIRROR: u32 = 100;

impl fmt::Debug for TestSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestSource").field("layers", &self.layers).finish_non_exhaustive()
    }
}

pub fn key(layer: u32, expert: u32) -> ExpertKey {
    ExpertKey::new(LayerId(layer), ExpertId(expert))
}

pub fn experts<const N: usize>(experts: [u32; N]) -> [ExpertId; N] {
    experts.map(ExpertId)
}

fn tier(width: u32) -> Tier {
    let geometry = ExpertGeometry::uniform(width, width, Quantisation::Signed { bits: 8, group: None });
    Tier { layout: SlotLayout::new(&geometry).unwrap(), geometry }
}

/// Files are one for each layer, experts one after another, components one after another.
fn segments(layout: &SlotLayout, file: u32, expert: u32) -> Vec<Segment> {
    let mut file_offset_bytes = u64::from(expert) * layout.record_bytes();
    let mut segments = Vec::new();
    for part in Part::ALL {
        for range in Projection::ALL.into_iter().filter_map(|projection| layout.range(projection, part)) {
            let len_bytes = range.end - range.start;
            segments.push(Segment {
                file: FileId(file),
                file_offset_bytes,
                slot_offset_bytes: range.start,
                len_bytes,
            });
            file_offset_bytes += len_bytes;
        }
    }
    segments
}

impl TestSource {
    /// Layers numbered from 0 with so many experts each, all in tier 0, read in full.
    pub fn new(experts_of_layers: &[u32]) -> Self {
        Self::with_tiers(&[8], &experts_of_layers.iter().map(|&experts| (0, experts)).collect::<Vec<_>>())
    }

    /// Tiers of the given widths, and layers as (tier, experts).
    pub fn with_tiers(widths: &[u32], layers: &[(u32, u32)]) -> Self {
        let tiers: Vec<_> = widths.iter().map(|&width| tier(width)).collect();
        let layers: Vec<_> = (0..)
            .zip(layers)
            .map(|(layer, &(tier, experts))| SparseLayer {
                layer: LayerId(layer),
                tier: TierId(tier),
                experts,
            })
            .collect();
        let segments = layers
            .iter()
            .flat_map(|layer| {
                (0..layer.experts)
                    .map(|expert| segments(&tiers[layer.tier.index()].layout, layer.layer.0, expert))
            })
            .collect();
        let record_bytes =
            layers.iter().map(|layer| tiers[layer.tier.index()].layout.record_bytes()).collect();
        let behaviour = Box::new(|_| Read::Full);
        Self {
            tiers,
            layers,
            segments,
            record_bytes,
            without: None,
            behaviour,
            drives: Vec::new(),
            mirrored: false,
        }
    }

    pub fn behaving(self, behaviour: impl Fn(ExpertKey) -> Read + Send + Sync + 'static) -> Self {
        Self { behaviour: Box::new(behaviour), ..self }
    }

    pub fn slot_bytes(&self) -> u64 {
        self.tiers[0].layout.slot_bytes()
    }

    pub fn record_bytes(&self) -> u64 {
        self.tiers[0].layout.record_bytes()
    }

    /// A plan with so many resident experts in each layer of tier 0, and so many working slots.
    pub fn plan(&self, resident: u64, working_slots: u32) -> ResidencyPlan {
        let most = self.layers.iter().map(|layer| layer.experts).max().unwrap();
        let slots = u64::from(working_slots.min(most)) + resident * self.layers.len() as u64;
        let budget = Budget { working_slots, ..Budget::new(slots * self.slot_bytes()) };
        ResidencyPlan::new(self, &budget).unwrap()
    }

    /// A plan with 2 resident experts in each layer of tier 0, 4 working slots, and what `change` adds; pinned experts
    /// get slots of their own.
    pub fn plan_with(&self, change: impl Fn(&mut Budget)) -> ResidencyPlan {
        let mut budget = Budget { working_slots: 4, ..Budget::new(0) };
        change(&mut budget);
        let slots =
            u64::from(budget.working_slots) + 2 * self.layers.len() as u64 + budget.pinned.len() as u64;
        budget.budget_bytes = slots * self.slot_bytes();
        ResidencyPlan::new(self, &budget).unwrap()
    }

    /// Whether `bytes` are those of `key`, in every component.
    pub fn is(&self, key: ExpertKey, bytes: &[u8]) -> bool {
        self.segments(key).unwrap().iter().all(|segment| {
            let slot = usize::try_from(segment.slot_offset_bytes).unwrap();
            let len = usize::try_from(segment.len_bytes).unwrap();
            let mut expected = vec![0; len];
            content(segment.file, segment.file_offset_bytes, &mut expected);
            bytes[slot..slot + len] == expected
        })
    }
}

fn content(file: FileId, offset_bytes: u64, buffer: &mut [u8]) {
    for (offset, byte) in (offset_bytes..).zip(buffer) {
        let mixed = (offset + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (u64::from(file.0) << 20);
        *byte = mixed.wrapping_mul(0xD6E8_FEB8_6659_FD93).to_be_bytes()[0];
    }
}

impl ExpertSource for TestSource {
    fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    fn layers(&self) -> &[SparseLayer] {
        &self.layers
    }

    fn segments(&self, key: ExpertKey) -> Option<&[Segment]> {
        let before: u32 =
            self.layers.iter().take_while(|layer| layer.layer < key.layer).map(|l| l.experts).sum();
        let layer = self.layers.iter().find(|layer| layer.layer == key.layer)?;
        (key.expert.0 < layer.experts && self.without != Some(key))
            .then(|| &self.segments[(before + key.expert.0) as usize][..])
    }

    fn read_at(&self, file: FileId, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
        let copy = FileId(file.0 % MIRROR);
        let expert = u32::try_from(offset_bytes / self.record_bytes[copy.index()]).unwrap();
        let len = match (self.behaviour)(key(file.0, expert)) {
            Read::Full => buffer.len(),
            Read::Short(len) => len.clamp(1, buffer.len()),
            Read::Fail(kind) => return Err(kind.into()),
            Read::End => 0,
            Read::Claim(len) => return Ok(len),
            Read::Panic => panic!("the source broke"),
        };
        content(copy, offset_bytes, &mut buffer[..len]);
        Ok(len)
    }

    fn drive(&self, file: FileId) -> u64 {
        self.drives.get(file.index()).copied().unwrap_or(u64::from(file.0 / MIRROR))
    }

    fn mirror(&self, file: FileId) -> Option<FileId> {
        self.mirrored.then_some(FileId(file.0 + MIRROR))
    }

    fn path(&self, file: FileId) -> &Path {
        let names = ["layer-0.bin", "layer-1.bin", "layer-n.bin"];
        Path::new(if file.0 >= MIRROR { "mirror.bin" } else { names[file.index().min(2)] })
    }
}

/// A manager over anonymous banks.
pub fn manager(source: &Arc<TestSource>, plan: ResidencyPlan, readers: u32) -> ResidencyManager {
    manager_with(source, plan, readers, Lru::boxed)
}

pub fn manager_with(
    source: &Arc<TestSource>,
    plan: ResidencyPlan,
    readers: u32,
    policy: impl FnMut(&PolicyScope<'_>) -> Box<dyn CachePolicy>,
) -> ResidencyManager {
    let banks = plan.anonymous_banks().unwrap();
    let source = Arc::clone(source) as Arc<dyn ExpertSource>;
    ResidencyManager::new(
        source,
        plan,
        banks,
        policy,
        &ManagerOptions { readers, ..ManagerOptions::default() },
    )
    .unwrap()
}

/// Checks every ready expert of a lease, byte for byte.
pub fn verify(source: &TestSource, lease: &Lease) {
    for position in 0..lease.len() {
        let key = ExpertKey::new(lease.layer(), lease.expert(position));
        assert!(source.is(key, lease.bytes(position).unwrap()), "{key} in {}", lease.slot(position));
    }
}

/// Leases experts, checks their bytes, and releases them; the positions that hit.
pub fn pass(source: &TestSource, manager: &ResidencyManager, layer: u32, experts: &[ExpertId]) -> Vec<usize> {
    let lease = manager.lease_with(LayerId(layer), experts, |_| {}).unwrap();
    verify(source, &lease);
    let hits = lease.hits().collect();
    lease.release().unwrap();
    manager.check_invariants();
    hits
}

/// The residents of a layer, as numbers.
pub fn residents(manager: &ResidencyManager, layer: u32) -> Vec<u32> {
    manager.resident_experts(LayerId(layer)).into_iter().map(|expert| expert.0).collect()
}

/// Holds threads back until it is opened, and counts those it holds.
#[derive(Clone, Default)]
pub struct Gate {
    inner: Arc<(Mutex<(bool, u32)>, Condvar)>,
}

impl Gate {
    /// Waits until the gate is open.
    pub fn pass(&self) {
        let (state, changed) = &*self.inner;
        let mut state = state.lock().unwrap();
        state.1 += 1;
        changed.notify_all();
        while !state.0 {
            state = changed.wait(state).unwrap();
        }
    }

    pub fn open(&self) {
        self.inner.0.lock().unwrap().0 = true;
        self.inner.1.notify_all();
    }

    /// Waits until so many threads have come to the gate.
    pub fn wait_for(&self, arrived: u32) {
        let (state, changed) = &*self.inner;
        let mut state = state.lock().unwrap();
        while state.1 < arrived {
            state = changed.wait(state).unwrap();
        }
    }
}

/// Waits until `condition` holds: for what another thread does between two calls that cannot tell. Fails after a while.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..2000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what} did not happen");
}
