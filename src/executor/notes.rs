//! What an executor writes down of its routes, for later runs: the usage ledger and the recorder.

use std::path::PathBuf;

use super::{ExecutorOpenError, ExecutorOptions};
use crate::{
    ids::{ExpertKey, LayerId},
    recorder::{RecorderError, RouteRecorder},
    residency::ResidencyManager,
    routing::BatchPlan,
    sources::ExpertSource,
    sync::{Arc, Mutex, lock},
    usage::{DamagedLedger, LedgerError, SwapOptions, UsageLedger, plan_swaps},
};

/// What [`StreamedExpertExecutor::end_turn`](crate::StreamedExpertExecutor::end_turn) did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndedTurn {
    /// Pinned experts that gave their place to resident ones.
    pub pin_swaps: u64,
}

/// Notes that could not be written. Results are not affected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TurnError {
    /// The ledger is not saved; its counts are kept.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Routes are not recorded any more.
    #[error(transparent)]
    Recorder(#[from] RecorderError),
}

/// One executor's notes. What is written is shared with the executors that share its slots.
#[derive(Debug)]
pub(super) struct Notes {
    /// `None` if nothing is to be written.
    shared: Option<Arc<Shared>>,
    /// The number of the forward in hand, and the layer it has come to.
    forward: Option<(u64, LayerId)>,
}

#[derive(Debug)]
struct Shared {
    ledger: Option<LedgerFile>,
    swap_pins: Option<SwapOptions>,
    recorder: Option<Mutex<Recording>>,
}

#[derive(Debug)]
struct LedgerFile {
    /// Locked while the ledger is being saved, so that two threads do not write one file.
    path: Mutex<PathBuf>,
    ledger: Mutex<UsageLedger>,
    damaged: Option<DamagedLedger>,
}

#[derive(Debug)]
struct Recording {
    recorder: RouteRecorder,
    forwards: u64,
    error: Option<RecorderError>,
}

impl Notes {
    pub(super) fn open(
        source: &dyn ExpertSource,
        options: &ExecutorOptions,
    ) -> Result<Self, ExecutorOpenError> {
        let ledger = options.ledger.as_ref().map(|path| {
            let layers = source.layers().iter().map(|layer| (layer.layer, layer.experts));
            let (ledger, damaged) = UsageLedger::open(path, layers)?;
            let path = Mutex::new(path.clone());
            Ok::<_, LedgerError>(LedgerFile { path, ledger: Mutex::new(ledger), damaged })
        });
        let ledger = ledger.transpose()?;
        let recorder =
            options.record.as_ref().map(|record| RouteRecorder::create(&record.path, record.limits));
        let recorder = recorder
            .transpose()?
            .map(|recorder| Mutex::new(Recording { recorder, forwards: 0, error: None }));
        let any = ledger.is_some() || recorder.is_some();
        let shared = any.then(|| Arc::new(Shared { ledger, swap_pins: options.swap_pins, recorder }));
        Ok(Self { shared, forward: None })
    }

    pub(super) fn share(&self) -> Self {
        Self { shared: self.shared.clone(), forward: None }
    }

    fn ledger_file(&self) -> Option<&LedgerFile> {
        self.shared.as_ref()?.ledger.as_ref()
    }

    pub(super) fn damaged_ledger(&self) -> Option<&DamagedLedger> {
        self.ledger_file()?.damaged.as_ref()
    }

    pub(super) fn ledger(&self) -> Option<UsageLedger> {
        self.ledger_file().map(|file| lock(&file.ledger).clone())
    }

    /// Notes the routes of a layer, before equal experts are merged.
    pub(super) fn forward(&mut self, layer: LayerId, plan: &BatchPlan) {
        let Some(shared) = &self.shared else { return };
        if let Some(file) = &shared.ledger {
            let mut ledger = lock(&file.ledger);
            for job in plan.jobs() {
                ledger.record(ExpertKey::new(layer, job.expert), job.rows() as u64);
            }
        }
        if let Some(recording) = &shared.recorder {
            let mut recording = lock(recording);
            let forward = match self.forward {
                Some((forward, before)) if layer > before => forward,
                _ => {
                    recording.forwards += 1;
                    recording.forwards - 1
                }
            };
            self.forward = Some((forward, layer));
            // A recorder that has failed records nothing more, so there is one error at most.
            if let Err(error) = recording.recorder.record(forward, layer, plan.routes()) {
                recording.error = Some(error);
            }
        }
    }

    pub(super) fn end_turn(&mut self, manager: &ResidencyManager) -> Result<EndedTurn, TurnError> {
        let mut ended = EndedTurn::default();
        let Some(shared) = &self.shared else { return Ok(ended) };
        if let Some(file) = &shared.ledger {
            let path = lock(&file.path);
            let saved = {
                let mut ledger = lock(&file.ledger);
                ledger.end_turn();
                ledger.clone()
            };
            if let Some(options) = &shared.swap_pins {
                ended.pin_swaps = swap_pins(&saved, manager, options);
            }
            saved.save(&*path)?;
        }
        match shared.recorder.as_ref().and_then(|recording| lock(recording).error.take()) {
            Some(error) => Err(error.into()),
            None => Ok(ended),
        }
    }
}

fn swap_pins(ledger: &UsageLedger, manager: &ResidencyManager, options: &SwapOptions) -> u64 {
    let (mut pinned, mut resident) = (Vec::new(), Vec::new());
    for layer in manager.plan().tiers().iter().flat_map(|tier| tier.layers()) {
        if layer.pinned().is_empty() {
            continue;
        }
        let keys = |experts: Vec<_>| experts.into_iter().map(|expert| ExpertKey::new(layer.layer(), expert));
        let of_layer = manager.pinned_experts(layer.layer());
        let kept = manager.resident_experts(layer.layer());
        resident.extend(keys(kept).filter(|key| !of_layer.contains(&key.expert)));
        pinned.extend(keys(of_layer));
    }
    manager.swap_pins(&plan_swaps(ledger, &pinned, &resident, options))
}
