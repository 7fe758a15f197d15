//! The slab file: a head, a manifest, a table of checksums, and one aligned record per expert.
//!
//! docs/SLAB.md describes it byte by byte. Nothing here reads or writes files.

mod error;
mod head;
mod manifest;

pub use error::SlabError;
pub(crate) use head::{Head, HeadState, MAX_RECORDS, Table, is_slab, whole_pages};
pub(crate) use manifest::{Manifest, ManifestLayer, ManifestTier};
pub use manifest::{Origin, OriginFile};
