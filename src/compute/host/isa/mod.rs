//! The instruction sets.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use super::options::HostIsa;

/// An instruction set that this machine has, with its token.
#[derive(Clone, Copy, Debug)]
pub(super) enum Isa {
    Portable(portable::Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
}

impl Isa {
    /// The fastest there is.
    pub(super) fn best() -> Self {
        [HostIsa::Avx512, HostIsa::Avx2, HostIsa::Neon]
            .into_iter()
            .find_map(Self::get)
            .unwrap_or(Self::Portable(portable::Portable))
    }

    /// The one asked for, if the machine has it.
    pub(super) fn get(isa: HostIsa) -> Option<Self> {
        match isa {
            HostIsa::Portable => Some(Self::Portable(portable::Portable)),
            #[cfg(target_arch = "x86_64")]
            HostIsa::Avx2 => avx2::Avx2::detect().map(Self::Avx2),
            #[cfg(target_arch = "x86_64")]
            HostIsa::Avx512 => avx512::Avx512::detect().map(Self::Avx512),
            #[cfg(target_arch = "aarch64")]
            HostIsa::Neon => Some(Self::Neon(neon::Neon)),
            _ => None,
        }
    }
}
