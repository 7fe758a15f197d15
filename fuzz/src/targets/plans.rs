//! Routes and batch plans.

use streamed_experts::{BatchPlan, ExpertId, Routes};

use crate::memory::at_most;

/// Three bytes of sizes, then per pair two of expert and one of weight; a zero expert byte pair ends a ragged row.
pub fn plans(data: &[u8]) {
    let [layer_low, layer_high, ranks, pairs @ ..] = data else { return };
    let experts_in_layer = u32::from(u16::from_le_bytes([*layer_low, *layer_high]));
    let pairs: Vec<(ExpertId, f32)> = pairs
        .chunks_exact(3)
        .map(|pair| (ExpertId(u32::from(u16::from_le_bytes([pair[0], pair[1]]))), weight(pair[2])))
        .collect();
    let limit_bytes = (1 << 20) + 64 * data.len();
    if *ranks == 0 {
        let rows: Vec<&[(ExpertId, f32)]> = pairs.split(|&(expert, _)| expert.0 == 0xffff).collect();
        check(
            &rows,
            experts_in_layer,
            at_most(limit_bytes, || Routes::from_ragged(&rows, experts_in_layer)).ok(),
        );
    } else {
        let ranks = usize::from(*ranks);
        let experts: Vec<u32> = pairs.iter().map(|(expert, _)| expert.0).collect();
        let weights: Vec<f32> = pairs.iter().map(|&(_, weight)| weight).collect();
        let rows = experts.len() / ranks;
        let routes =
            at_most(limit_bytes, || Routes::from_top_k(rows, ranks, &experts, &weights, experts_in_layer));
        let whole = experts.len().is_multiple_of(ranks);
        assert!(whole || routes.is_err(), "{} pairs in rows of {ranks}", experts.len());
        if whole {
            let rows: Vec<&[(ExpertId, f32)]> = pairs.chunks(ranks).collect();
            check(&rows, experts_in_layer, routes.ok());
        }
    }
}

/// NaN and infinities too.
fn weight(byte: u8) -> f32 {
    match byte {
        0xff => f32::NAN,
        0xfe => f32::INFINITY,
        _ => (f32::from(byte) - 128.0) / 64.0,
    }
}

/// What the routes should have been, counted in the simplest way.
fn check(rows: &[&[(ExpertId, f32)]], experts_in_layer: u32, routes: Option<Routes>) {
    let sound_row = |row: &&[(ExpertId, f32)]| {
        row.iter().enumerate().all(|(rank, &(expert, _))| {
            expert.0 < experts_in_layer && row[..rank].iter().all(|&(before, _)| before != expert)
        })
    };
    // A layer without experts, or with more than any model has, is refused as well.
    if experts_in_layer == 0 || experts_in_layer > 1 << 14 {
        return;
    }
    assert_eq!(
        routes.is_some(),
        !rows.is_empty() && rows.iter().all(sound_row),
        "{rows:?} of {experts_in_layer}"
    );
    let Some(routes) = routes else { return };
    let plan = BatchPlan::new(&routes, experts_in_layer).expect("sound routes");
    let mut order: Vec<ExpertId> = Vec::new();
    for &(expert, _) in rows.iter().copied().flatten() {
        if !order.contains(&expert) {
            order.push(expert);
        }
    }
    assert_eq!(plan.jobs().iter().map(|job| job.expert).collect::<Vec<_>>(), order);
    for (row, pairs) in rows.iter().enumerate() {
        let given = pairs.iter().map(|(expert, weight)| (*expert, weight.to_bits()));
        assert!(routes.row(row).map(|(expert, weight)| (expert, weight.to_bits())).eq(given));
    }
    for wave in plan.waves(3) {
        for job in wave {
            let uses = plan.uses(job);
            let rows_with: Vec<u32> = (0..rows.len())
                .filter(|&row| rows[row].iter().any(|&(expert, _)| expert == job.expert))
                .map(|row| row as u32)
                .collect();
            assert_eq!(uses.iter().map(|each| each.row).collect::<Vec<_>>(), rows_with);
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(11);
    let mut seeds = Vec::new();
    for ranks in [0u8, 1, 2, 8] {
        let mut seed = vec![64, 0, ranks];
        for pair in 0..64u8 {
            let end = ranks == 0 && pair % 5 == 4;
            let expert = if end { 0xffff } else { u16::from(pair % 8 * 8 + random.u8(0..8)) };
            seed.extend(expert.to_le_bytes());
            seed.push(random.u8(..));
        }
        seeds.push(seed);
    }
    seeds
}
