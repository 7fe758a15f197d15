//! Which family computes a tier, and how a pass is begun and ended on it.

use super::{ExecuteError, ExecutorOpenError, ExecutorOptions, Family, LayerShape};
#[cfg(feature = "mlx")]
use crate::compute::gpu::UnsupportedGeometry;
#[cfg(feature = "mlx")]
use crate::mlx::{
    self, Array, StockForward, StockTier,
    kernels::{Backend, KernelForward, KernelTier, Unsupported},
};
use crate::{
    compute::{
        ComputeError, Forward,
        host::{HostFamily, HostForward, HostOptions},
    },
    memory::Bank,
    residency::Lease,
    routing::{BatchPlan, Job},
    sources::Tier,
    sync::Arc,
};

/// What computes the experts of one tier. A clone computes on the same slots, in another thread.
#[derive(Clone, Debug)]
pub(super) enum TierCompute {
    /// With why our kernels do not compute the tier, if they were asked to.
    #[cfg(feature = "mlx")]
    Stock(Box<StockTier>, Option<UnsupportedGeometry>),
    #[cfg(feature = "mlx")]
    Kernels(Box<KernelTier>),
    Host(Arc<HostFamily>),
}

/// One pass on a tier's family.
pub(super) enum TierForward<'a> {
    #[cfg(feature = "mlx")]
    Stock(StockForward<'a>),
    #[cfg(feature = "mlx")]
    Kernels(KernelForward<'a>),
    Host(HostForward<'a>),
}

/// Makes each tier's family; the host family's threads are shared.
#[derive(Debug)]
pub(super) struct Families {
    family: Family,
    #[cfg(feature = "mlx")]
    fixed: bool,
    host: Option<Arc<HostFamily>>,
    host_options: HostOptions,
}

impl Families {
    pub(super) fn new(options: &ExecutorOptions) -> Result<Self, ExecutorOpenError> {
        let family = match options.family {
            Family::Auto => automatic(),
            Family::Stock | Family::Metal | Family::Cuda if cfg!(not(feature = "mlx")) => {
                return Err(ExecutorOpenError::FamilyNotBuilt {
                    family: options.family.name(),
                    feature: "mlx",
                });
            }
            chosen => chosen,
        };
        Ok(Self {
            family,
            #[cfg(feature = "mlx")]
            fixed: options.fixed_family,
            host: None,
            host_options: options.host.clone(),
        })
    }

    /// The family and the bank of one tier of `slots` slots.
    pub(super) fn tier(&mut self, tier: &Tier, slots: u32) -> Result<(Bank, TierCompute), ExecutorOpenError> {
        match self.family {
            #[cfg(feature = "mlx")]
            Family::Metal | Family::Cuda => {
                let backend = if self.family == Family::Metal { Backend::Metal } else { Backend::Cuda };
                let (bank, array) = mlx::mlx_bank(slots, tier.layout.slot_bytes())?;
                let compute = match KernelTier::supports(&tier.geometry, backend) {
                    Ok(()) => KernelTier::new(array, &tier.geometry, &tier.layout, backend)
                        .map(|kernels| TierCompute::Kernels(Box::new(kernels)))
                        .map_err(ComputeError::new)?,
                    Err(Unsupported::Geometry(reason)) => self.stock(array, tier, Some(reason))?,
                    Err(unsupported) => return Err(ComputeError::new(unsupported).into()),
                };
                Ok((bank, compute))
            }
            #[cfg(feature = "mlx")]
            Family::Stock => {
                let (bank, array) = mlx::mlx_bank(slots, tier.layout.slot_bytes())?;
                Ok((bank, self.stock(array, tier, None)?))
            }
            _ => {
                let bank = Bank::anonymous(slots, tier.layout.slot_bytes())?;
                Ok((bank, TierCompute::Host(self.host()?)))
            }
        }
    }

    #[cfg(feature = "mlx")]
    fn stock(
        &self,
        bank: mlx::BankArray,
        tier: &Tier,
        instead: Option<UnsupportedGeometry>,
    ) -> Result<TierCompute, ComputeError> {
        let stock = StockTier::new(bank, &tier.geometry, &tier.layout).map_err(ComputeError::new)?;
        Ok(TierCompute::Stock(Box::new(stock.one_row_at_a_time(self.fixed)), instead))
    }

    fn host(&mut self) -> Result<Arc<HostFamily>, ExecutorOpenError> {
        if let Some(host) = &self.host {
            return Ok(Arc::clone(host));
        }
        let host = HostFamily::new(self.host_options.clone()).map_err(ComputeError::new)?;
        Ok(Arc::clone(self.host.insert(Arc::new(host))))
    }
}

/// What [`Family::Auto`] stands for.
fn automatic() -> Family {
    #[cfg(feature = "mlx")]
    if mlx::default_device_is_gpu() {
        return Family::of_gpu().unwrap_or(Family::Stock);
    }
    Family::Host
}

impl TierCompute {
    /// The family that computes.
    pub(super) const fn family(&self) -> Family {
        match self {
            #[cfg(feature = "mlx")]
            Self::Stock(..) => Family::Stock,
            #[cfg(feature = "mlx")]
            Self::Kernels(tier) => match tier.backend() {
                Backend::Metal => Family::Metal,
                Backend::Cuda => Family::Cuda,
            },
            Self::Host(_) => Family::Host,
        }
    }

    /// Why our GPU kernels do not compute the tier although they were asked to.
    pub(super) fn instead_of_kernels(&self) -> Option<String> {
        match self {
            #[cfg(feature = "mlx")]
            Self::Stock(_, reason) => reason.map(|reason| reason.to_string()),
            _ => None,
        }
    }

    /// How many of our kernels were dispatched since this was asked last.
    pub(super) fn take_dispatches(&self) -> u64 {
        match self {
            #[cfg(feature = "mlx")]
            Self::Kernels(tier) => tier.take_dispatches(),
            _ => 0,
        }
    }

    /// Begins a pass over rows in host memory.
    pub(super) fn begin_rows<'a>(
        &'a self,
        shape: &LayerShape<'a>,
        plan: &'a BatchPlan,
        input: &[f32],
        shared: Option<&[f32]>,
    ) -> Result<TierForward<'a>, ExecuteError> {
        match self {
            #[cfg(feature = "mlx")]
            Self::Stock(tier, _) => {
                let array = mlx::rows_to_array(input, tier.hidden()).map_err(ComputeError::new)?;
                let shared = shared.map(|rows| mlx::rows_to_array(rows, tier.hidden()));
                let shared = shared.transpose().map_err(ComputeError::new)?;
                let forward = StockForward::begin(tier, plan, array, shared).map_err(ComputeError::new)?;
                Ok(TierForward::Stock(forward))
            }
            #[cfg(feature = "mlx")]
            Self::Kernels(tier) => {
                let array = mlx::rows_to_array(input, tier.hidden()).map_err(ComputeError::new)?;
                let shared = shared.map(|rows| mlx::rows_to_array(rows, tier.hidden()));
                let shared = shared.transpose().map_err(ComputeError::new)?;
                let forward =
                    KernelForward::begin(tier, plan, &array, shared.as_ref()).map_err(ComputeError::new)?;
                Ok(TierForward::Kernels(forward))
            }
            Self::Host(family) => {
                let _ = shared;
                let input = input.to_vec();
                Ok(TierForward::Host(HostForward::begin(
                    family,
                    shape.geometry(),
                    shape.layout(),
                    plan,
                    input,
                )))
            }
        }
    }

    /// Begins a pass over an MLX array of checked shape and dtype.
    #[cfg(feature = "mlx")]
    pub(super) fn begin_array<'a>(
        &'a self,
        shape: &LayerShape<'a>,
        plan: &'a BatchPlan,
        input: &Array,
        shared: Option<&Array>,
    ) -> Result<TierForward<'a>, ExecuteError> {
        let hidden = shape.geometry().hidden as usize;
        match self {
            Self::Stock(tier, _) => {
                let rows = mlx::flatten(input, hidden).map_err(ComputeError::new)?;
                let shared =
                    shared.map(|rows| mlx::flatten(rows, hidden)).transpose().map_err(ComputeError::new)?;
                let forward = StockForward::begin(tier, plan, rows, shared).map_err(ComputeError::new)?;
                Ok(TierForward::Stock(forward))
            }
            Self::Kernels(tier) => {
                let rows = mlx::flatten(input, hidden).map_err(ComputeError::new)?;
                let shared =
                    shared.map(|rows| mlx::flatten(rows, hidden)).transpose().map_err(ComputeError::new)?;
                let forward =
                    KernelForward::begin(tier, plan, &rows, shared.as_ref()).map_err(ComputeError::new)?;
                Ok(TierForward::Kernels(forward))
            }
            Self::Host(family) => {
                if let Some(shared) = shared {
                    mlx::submit(shared).map_err(ComputeError::new)?;
                }
                let input = mlx::array_to_rows(input).map_err(ComputeError::new)?;
                Ok(TierForward::Host(HostForward::begin(
                    family,
                    shape.geometry(),
                    shape.layout(),
                    plan,
                    input,
                )))
            }
        }
    }
}

impl TierForward<'_> {
    /// The composed rows in host memory.
    pub(super) fn into_rows(self, shared: Option<&[f32]>) -> Result<Vec<f32>, ComputeError> {
        match self {
            #[cfg(feature = "mlx")]
            Self::Stock(forward) => {
                let composed = forward.finish().map_err(ComputeError::new)?;
                mlx::array_to_rows(&composed).map_err(ComputeError::new)
            }
            #[cfg(feature = "mlx")]
            Self::Kernels(forward) => {
                let composed = forward.finish().map_err(ComputeError::new)?;
                mlx::array_to_rows(&composed).map_err(ComputeError::new)
            }
            Self::Host(forward) => Ok(forward.finish(shared)),
        }
    }

    /// The composed rows in the shape and dtype of `input`.
    #[cfg(feature = "mlx")]
    pub(super) fn into_array(self, input: &Array, shared: Option<&Array>) -> Result<Array, ComputeError> {
        let composed = match self {
            Self::Stock(forward) => forward.finish().map_err(ComputeError::new)?,
            Self::Kernels(forward) => forward.finish().map_err(ComputeError::new)?,
            Self::Host(forward) => {
                let shared = shared.map(mlx::array_to_rows).transpose().map_err(ComputeError::new)?;
                let hidden = input.shape().last().copied().unwrap_or(0);
                mlx::rows_to_array(&forward.finish(shared.as_deref()), hidden).map_err(ComputeError::new)?
            }
        };
        mlx::shape_like(&composed, input).map_err(ComputeError::new)
    }
}

impl Forward for TierForward<'_> {
    fn each_miss(&self) -> bool {
        match self {
            #[cfg(feature = "mlx")]
            Self::Stock(forward) => forward.each_miss(),
            #[cfg(feature = "mlx")]
            Self::Kernels(forward) => forward.each_miss(),
            Self::Host(forward) => forward.each_miss(),
        }
    }

    fn submit(&mut self, lease: &Lease, wave: &[Job], positions: &[usize]) -> Result<(), ComputeError> {
        match self {
            #[cfg(feature = "mlx")]
            Self::Stock(forward) => forward.submit(lease, wave, positions),
            #[cfg(feature = "mlx")]
            Self::Kernels(forward) => forward.submit(lease, wave, positions),
            Self::Host(forward) => forward.submit(lease, wave, positions),
        }
    }

    fn fence(&mut self) -> Result<(), ComputeError> {
        match self {
            #[cfg(feature = "mlx")]
            Self::Stock(forward) => forward.fence(),
            #[cfg(feature = "mlx")]
            Self::Kernels(forward) => forward.fence(),
            Self::Host(forward) => forward.fence(),
        }
    }
}
