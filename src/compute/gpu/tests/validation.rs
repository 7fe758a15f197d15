//! What no kernel may be given is refused before any dispatch.

use super::super::{ComposeTerms, GpuExpert, Terms, Tiles, UnsupportedGeometry, WorkError};
use crate::{
    formats::{Activation, ExpertGeometry, FloatType, Projection, Quantisation, SlotLayout},
    ids::SlotId,
    routing::{BatchPlan, ExpertUse, Routes},
};

const SIGNED: Quantisation = Quantisation::Signed { bits: 4, group: None };

fn refused(geometry: ExpertGeometry) -> UnsupportedGeometry {
    GpuExpert::new(&geometry).unwrap_err()
}

#[test]
fn geometries_that_the_kernels_cannot_compute_are_named() {
    let uniform = ExpertGeometry::uniform;
    assert!(matches!(
        refused(uniform(64, 32, Quantisation::Mxfp4)),
        UnsupportedGeometry::Format { projection: Projection::Gate, quantisation: Quantisation::Mxfp4 }
    ));
    assert_eq!(
        refused(uniform(72, 32, SIGNED)),
        UnsupportedGeometry::Columns { projection: Projection::Gate, columns: 72, multiple: 16 }
    );
    assert_eq!(
        refused(uniform(64, 40, SIGNED)),
        UnsupportedGeometry::Columns { projection: Projection::Down, columns: 40, multiple: 16 }
    );
    assert_eq!(
        refused(uniform(64, 32, Quantisation::Signed { bits: 4, group: Some(24) })),
        UnsupportedGeometry::Group { projection: Projection::Gate, group: 24, multiple: 16 }
    );
    let affine = |bits| Quantisation::Affine { bits, group: 32, scales: FloatType::F16 };
    assert!(matches!(refused(uniform(64, 32, affine(6))), UnsupportedGeometry::Format { .. }));
    let differing =
        ExpertGeometry { quantisation: [affine(4), affine(4), affine(8)], ..uniform(64, 32, SIGNED) };
    assert_eq!(refused(differing), UnsupportedGeometry::GateAndUpDiffer { gate: affine(4), up: affine(8) });
    let biased = ExpertGeometry {
        bias: Some(FloatType::F32),
        activation: Activation::ClampedSwiGlu { alpha: 1.0, limit: 1.0 },
        ..uniform(64, 32, SIGNED)
    };
    assert_eq!(refused(biased), UnsupportedGeometry::SignedWithBias { projection: Projection::Gate });
    assert!(matches!(refused(uniform(1 << 17, 32, SIGNED)), UnsupportedGeometry::TooLarge { .. }));
}

#[test]
fn the_published_layout_becomes_words() {
    let layout = SlotLayout::new(&ExpertGeometry::uniform(6144, 2048, SIGNED)).unwrap();
    let words = GpuExpert::layout_words(&layout, 4096);
    assert_eq!(words[..2], [1024, 18_939_904 / 4]);
    assert_eq!(words[2..6], [6_291_456 / 4, 18_907_136 / 4, 0, 0], "gate");
    assert_eq!(words[6..10], [12_582_912 / 4, 18_923_520 / 4, 0, 0], "up");
    assert_eq!(words[10..], [0, 18_874_368 / 4, 0, 0], "down");
}

fn plan() -> BatchPlan {
    let routes = Routes::from_top_k(2, 2, &[3, 1, 1, 0], &[0.5, 0.25, 0.75, 1.0], 4).unwrap();
    BatchPlan::new(&routes, 4).unwrap()
}

#[test]
fn slots_and_rows_out_of_range_are_refused() {
    let uses = [ExpertUse { row: 2, rank: 0, pair: 0, weight: 1.0 }];
    assert_eq!(
        Tiles::new([(SlotId(4), &uses[..])], 1, 4, 9),
        Err(WorkError::Slot { slot: SlotId(4), slots: 4 })
    );
    assert_eq!(Tiles::new([(SlotId(3), &uses[..])], 1, 4, 2), Err(WorkError::Row { row: 2, rows: 2 }));
    let many = vec![uses[0]; 65_536];
    let error = Tiles::new([(SlotId(0), &many[..])], 1, 1, 3).unwrap_err();
    assert_eq!(error, WorkError::TooMany { what: "tiles", count: 65_536, limit: 65_535 });
}

#[test]
fn tiles_cover_the_pairs_of_their_jobs() {
    let plan = plan();
    let jobs = plan.jobs().iter().map(|job| (SlotId(job.expert.0 + 1), plan.uses(job)));
    let tiles = Tiles::new(jobs, 2, 5, 2).unwrap();
    assert_eq!(tiles.tiles, [4, 0, 1, 2, 1, 2, 1, 3, 1]);
    assert_eq!((tiles.rows.as_slice(), tiles.pairs.as_slice()), (&[0, 0, 1, 1][..], &[0, 1, 2, 3][..]));
    let terms = Terms::new(&plan, &tiles).unwrap();
    assert_eq!((terms.offsets.as_slice(), terms.ranks), (&[0, 2, 4][..], 2));
    assert_eq!(terms.terms, [4, 0, 2, 1, 2, 2, 1, 3]);
}

#[test]
fn pairs_missing_or_computed_twice_are_refused() {
    let plan = plan();
    assert_eq!(ComposeTerms::new(&plan, &[&[0, 1], &[3]]), Err(WorkError::Missing { pair: 2 }));
    assert_eq!(ComposeTerms::new(&plan, &[&[0, 1], &[3, 1]]), Err(WorkError::Pair { pair: 1, pairs: 4 }));
    assert_eq!(ComposeTerms::new(&plan, &[&[0, 1, 2, 4]]), Err(WorkError::Pair { pair: 4, pairs: 4 }));
    assert_eq!(ComposeTerms::new(&plan, &[&[3, 1], &[0, 2]]).unwrap().terms, [2, 1, 3, 0]);
}
