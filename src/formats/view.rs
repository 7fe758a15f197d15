//! An expert's components borrowed from a slot.

use super::geometry::{ExpertGeometry, GeometryError, Part, Projection, SlotLayout};

/// One expert as bytes in slot layout: what the oracle and the host kernels compute from.
#[derive(Clone, Copy, Debug)]
pub struct ExpertView<'a> {
    geometry: &'a ExpertGeometry,
    layout: &'a SlotLayout,
    bytes: &'a [u8],
}

impl<'a> ExpertView<'a> {
    /// Views `bytes` as an expert of `geometry`, laid out by `layout`.
    ///
    /// # Errors
    /// [`GeometryError::Short`] if `bytes` is shorter than the layout's slot.
    pub fn new(
        geometry: &'a ExpertGeometry,
        layout: &'a SlotLayout,
        bytes: &'a [u8],
    ) -> Result<Self, GeometryError> {
        if (bytes.len() as u64) < layout.slot_bytes() {
            return Err(GeometryError::Short {
                needed_bytes: layout.slot_bytes(),
                given_bytes: bytes.len() as u64,
            });
        }
        Ok(Self { geometry, layout, bytes })
    }

    /// The expert's shape.
    #[must_use]
    pub const fn geometry(&self) -> &'a ExpertGeometry {
        self.geometry
    }

    /// The bytes of one component; empty where the format has no such part.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the range lies inside `bytes`, as new() checked")]
    pub fn part(&self, projection: Projection, part: Part) -> &'a [u8] {
        self.layout
            .range(projection, part)
            .map_or(&[], |range| &self.bytes[range.start as usize..range.end as usize])
    }
}
