//! The checksum of an expert's record.

use std::ops::Range;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::geometry::SlotLayout;

/// xxh3 (64 bits, seed 0) of an expert's components in slot order, without the padding between them.
///
/// So an expert has one checksum, wherever it is stored: that of a slab's record is that of the tensors it was packed
/// from.
///
/// # Panics
/// If `slot` is shorter than a slot of the layout.
#[must_use]
pub fn record_checksum(layout: &SlotLayout, slot: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    for component in layout.components() {
        hash.update(&slot[in_memory(component)]);
    }
    hash.digest()
}

/// xxh3 of bytes that are no record: a manifest, a table.
pub(crate) fn bytes_checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Zeroes what lies between the components and behind the last.
pub(crate) fn zero_padding(layout: &SlotLayout, slot: &mut [u8]) {
    for padding in paddings(layout) {
        slot[padding].fill(0);
    }
}

/// Where the padding is not zero, counted from the beginning of the slot.
pub(crate) fn first_nonzero_padding(layout: &SlotLayout, slot: &[u8]) -> Option<u64> {
    paddings(layout).find_map(|padding| {
        let start = padding.start;
        slot[padding].iter().position(|&byte| byte != 0).map(|at| (start + at) as u64)
    })
}

fn paddings(layout: &SlotLayout) -> impl Iterator<Item = Range<usize>> {
    let ends = layout.components().map(|component| component.end);
    let starts = layout.components().skip(1).map(|component| component.start);
    ends.zip(starts.chain([layout.slot_bytes()])).map(|(end, start)| in_memory(end..start))
}

fn in_memory(range: Range<u64>) -> Range<usize> {
    let index = |at| usize::try_from(at).expect("a slot lies in memory");
    index(range.start)..index(range.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::{ExpertGeometry, Quantisation};

    fn layout() -> SlotLayout {
        let signed = Quantisation::Signed { bits: 8, group: None };
        SlotLayout::new(&ExpertGeometry::uniform(16, 8, signed)).unwrap()
    }

    #[test]
    fn the_checksum_is_that_of_the_components_one_after_another() {
        let layout = layout();
        let slot: Vec<u8> = (0..layout.slot_bytes()).map(|at| (at % 251) as u8).collect();
        let joined: Vec<u8> = layout.components().flat_map(|c| slot[in_memory(c)].to_vec()).collect();
        assert_eq!(joined.len() as u64, layout.record_bytes());
        assert_eq!(record_checksum(&layout, &slot), xxh3_64(&joined));
    }

    #[test]
    fn components_and_paddings_cover_the_slot_once() {
        let layout = layout();
        let mut slot = vec![7u8; usize::try_from(layout.slot_bytes()).unwrap()];
        assert_eq!(first_nonzero_padding(&layout, &slot), Some(128));
        zero_padding(&layout, &mut slot);
        assert_eq!(first_nonzero_padding(&layout, &slot), None);
        assert_eq!(slot.iter().filter(|&&byte| byte == 7).count() as u64, layout.record_bytes());
    }
}
