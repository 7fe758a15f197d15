//! Spreading memory over layers, evenly.

/// The slots of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) slot_bytes: u64,
    /// Slots it has.
    pub(super) slots: u32,
    /// Slots it may have.
    pub(super) most: u32,
}

/// Gives every share the same number of further slots, as far as `left_bytes` and each one's `most` allow, and what
/// remains to the first shares it is enough for. Returns what is left.
pub(super) fn spread(shares: &mut [Share], mut left_bytes: u64) -> u64 {
    loop {
        let open = shares.iter().filter(|share| share.slots < share.most);
        let round_bytes: u128 = open.clone().map(|share| u128::from(share.slot_bytes)).sum();
        let Some(headroom) = open.map(|share| share.most - share.slots).min() else { return left_bytes };
        let affordable = u128::from(left_bytes).checked_div(round_bytes).unwrap_or_else(|| headroom.into());
        let rounds = u32::try_from(affordable).map_or(headroom, |affordable| affordable.min(headroom));
        if rounds == 0 {
            break;
        }
        for share in shares.iter_mut().filter(|share| share.slots < share.most) {
            share.slots += rounds;
            left_bytes -= share.slot_bytes * u64::from(rounds);
        }
    }
    for share in shares.iter_mut().filter(|share| share.slots < share.most) {
        if let Some(rest) = left_bytes.checked_sub(share.slot_bytes) {
            share.slots += 1;
            left_bytes = rest;
        }
    }
    left_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(shares: &[(u64, u32, u32)], left_bytes: u64) -> (Vec<u32>, u64) {
        let mut shares: Vec<_> =
            shares.iter().map(|&(slot_bytes, slots, most)| Share { slot_bytes, slots, most }).collect();
        let left = spread(&mut shares, left_bytes);
        (shares.iter().map(|share| share.slots).collect(), left)
    }

    #[test]
    fn what_is_left_goes_to_all_evenly_and_the_remainder_to_the_first() {
        assert_eq!(slots(&[(10, 1, 9), (10, 1, 9), (10, 1, 9)], 55), (vec![3, 3, 2], 5));
    }

    #[test]
    fn a_full_layer_leaves_its_part_to_the_others() {
        assert_eq!(slots(&[(10, 1, 2), (10, 1, 9), (10, 0, 0)], 45), (vec![2, 4, 0], 5));
        assert_eq!(slots(&[(10, 1, 2), (10, 1, 2)], 1000), (vec![2, 2], 980));
    }

    #[test]
    fn layers_of_different_sizes_get_equal_counts() {
        assert_eq!(slots(&[(10, 0, 9), (20, 0, 9)], 70), (vec![3, 2], 0));
        assert_eq!(slots(&[(20, 0, 9), (10, 0, 9)], 15), (vec![0, 1], 5), "what fits is given");
    }

    #[test]
    fn nothing_to_spread_and_nobody_to_take_it_are_fine() {
        assert_eq!(slots(&[], 5), (vec![], 5));
        assert_eq!(slots(&[(10, 0, 4)], 0), (vec![0], 0));
        assert_eq!(slots(&[(u64::MAX, 0, u32::MAX), (u64::MAX, 0, u32::MAX)], u64::MAX), (vec![1, 0], 0));
    }
}
