//! The names of things: newtypes without arithmetic, so that an index is never mistaken for another.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The id as an index into a slice.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

id!(
    /// A transformer layer, numbered as the checkpoint numbers it.
    LayerId, "L"
);
id!(
    /// An expert within its layer.
    ExpertId, "E"
);
id!(
    /// A slot within its tier's bank.
    SlotId, "S"
);
id!(
    /// A group of layers whose experts share one geometry, and so one bank.
    TierId, "T"
);
id!(
    /// A file of a source, by its position in the source's list.
    FileId, "F"
);
id!(
    /// How often a slot has been refilled. A reference with an older generation is stale.
    Generation, "g"
);

/// An expert of the whole model: `L3E17`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpertKey {
    /// The layer.
    pub layer: LayerId,
    /// The expert within it.
    pub expert: ExpertId,
}

impl ExpertKey {
    /// The key of expert `expert` in layer `layer`.
    #[must_use]
    pub const fn new(layer: LayerId, expert: ExpertId) -> Self {
        Self { layer, expert }
    }
}

impl fmt::Debug for ExpertKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{:?}", self.layer, self.expert)
    }
}

impl fmt::Display for ExpertKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One filling of a slot: `S5g2`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotRef {
    /// The slot.
    pub slot: SlotId,
    /// Which of its fillings.
    pub generation: Generation,
}

impl fmt::Debug for SlotRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{:?}", self.slot, self.generation)
    }
}

impl fmt::Display for SlotRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_the_way_people_write_them() {
        let key = ExpertKey::new(LayerId(3), ExpertId(17));
        let slot = SlotRef { slot: SlotId(5), generation: Generation(2) };
        assert_eq!(format!("{key:?} {key} {slot:?} {slot}"), "L3E17 L3E17 S5g2 S5g2");
    }
}
