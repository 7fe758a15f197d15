//! What followed the last time that things looked like this.

use super::{CachePolicy, Evictable, ExpertNumbering, PolicyScope, Verdict, residents::Residents};
use crate::ids::{ExpertKey, LayerId};

/// How many forwards are remembered.
const HISTORY: usize = 256;
const WORDS: usize = HISTORY / 64;

/// A forward's weight by age: half after 12 forwards.
const FADE: f32 = 0.943_874;
/// What all resemblance together may weigh, beside the newest forward's 1.
const STRENGTH: f32 = 20.0;
/// How much likeness there must be before resemblance counts for much.
const DOUBT: f32 = 0.01;
/// What a layer's overlap weighs when the next layer is compared.
const LAYER_FADE: f32 = 0.9;
/// What the overlaps up to the last layer weigh when the next forward begins.
const FORWARD_FADE: f32 = 0.9;
/// How much the first, second, … forward after a similar one counts.
const AFTERMATH: [f32; 5] = [1.0, 0.5, 0.3, 0.2, 0.2];
/// Resemblance that weighs less is passed over.
const NEGLIGIBLE: f32 = 0.1;

/// Gives up the expert whose past requests say least about the next ones. Never bypasses.
///
/// An expert's score has two parts. One is the number of its uses, halved every 12 forwards; it is counted whether the
/// expert is resident or not. The other is what followed when things looked as they do now: each of the last 256
/// forwards is compared with the present one, and the experts of the five forwards after it gain in proportion.
/// Two forwards are alike if the same experts were used, in the layers up to this one and, fading, in the forwards
/// before; their likeness is the share of equal experts, to the sixth power.
///
/// A forward begins when a request is for the same layer as the last request or an earlier one. So requests of several
/// sequences, interleaved by layer, are compared with a mixture, and the policy falls back to something near
/// decayed frequency. Routes alone are used, no router weights.
#[derive(Clone, Debug)]
pub struct Echo {
    numbering: ExpertNumbering,
    residents: Residents,
    experts: Box<[Known]>,
    /// Bit `p` says whether the expert was used by the newest forward whose position is `p`.
    used: Box<[[u64; WORDS]]>,
    /// For each layer and position, a bit for each expert: the same again, the other way round.
    rows: Box<[u64]>,
    layers: Box<[Layer]>,
    forward: u64,
    layer: Option<usize>,
    /// By position: how many experts are equal, faded.
    overlap: [f32; HISTORY],
    /// What `overlap` would be if all were equal.
    overlap_most: f32,
    recency: [f32; HISTORY],
    /// By position: what the forward adds to the experts it used.
    weight: [f32; HISTORY],
    /// The layer whose residents `scores` are for, in the order of its list.
    scored: Option<usize>,
    scores: Vec<f32>,
    /// What resemblance adds, for each expert of the scored layer.
    echoes: Vec<f32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    last_use: u64,
    /// Faded uses as of then.
    uses: f32,
}

#[derive(Clone, Copy, Debug)]
struct Layer {
    /// The last forward for which its bits are right.
    up_to: u64,
    first_word: usize,
    words: usize,
}

impl Echo {
    /// A policy for `scope`. Allocates about 100 bytes for each expert.
    #[must_use]
    pub fn new(scope: &PolicyScope<'_>) -> Self {
        let numbering = ExpertNumbering::new(scope);
        let most = |count: fn(&super::PolicyLayer) -> u32| {
            scope.layers.iter().map(count).max().unwrap_or(0) as usize
        };
        let mut recency = [1.0; HISTORY];
        for age in 1..HISTORY {
            recency[age] = recency[age - 1] * FADE;
        }
        let mut row_words = 0;
        let layers = scope.layers.iter().map(|layer| {
            let words = (layer.experts as usize).div_ceil(64);
            row_words += words * HISTORY;
            Layer { up_to: 0, first_word: row_words - words * HISTORY, words }
        });
        Self {
            layers: layers.collect(),
            residents: Residents::new(scope, &numbering),
            experts: vec![Known::default(); numbering.len()].into(),
            used: vec![[0; WORDS]; numbering.len()].into(),
            rows: vec![0; row_words].into(),
            forward: 0,
            layer: None,
            overlap: [0.0; HISTORY],
            overlap_most: 0.0,
            recency,
            weight: [0.0; HISTORY],
            scored: None,
            scores: Vec::with_capacity(most(|layer| layer.resident_slots)),
            echoes: Vec::with_capacity(most(|layer| layer.experts)),
            numbering,
        }
    }

    /// [`Echo::new`] as a factory for a manager.
    #[must_use]
    pub fn boxed(scope: &PolicyScope<'_>) -> Box<dyn CachePolicy> {
        Box::new(Self::new(scope))
    }

    fn place(&self, key: ExpertKey) -> Option<(usize, usize)> {
        self.numbering.place(key)
    }

    /// Moves on by a forward. What was as alike as it was to the last one is as alike to this one, a position on.
    fn begin(&mut self) {
        self.forward += 1;
        self.overlap.rotate_right(1);
        self.overlap[position(self.forward)] = 0.0;
    }

    /// Forgets what a layer did `HISTORY` forwards ago and more.
    fn catch_up(&mut self, layer: usize) {
        let Layer { up_to, first_word, words } = self.layers[layer];
        let first = self.numbering.range(layer).start;
        for forward in up_to.max(self.forward.saturating_sub(HISTORY as u64)) + 1..=self.forward {
            let at = position(forward);
            let row = first_word + at * words;
            for (word, bits) in self.rows[row..row + words].iter_mut().enumerate() {
                for bit in Bits(std::mem::take(bits)) {
                    self.used[first + word * 64 + bit][at / 64] &= !(1 << (at % 64));
                }
            }
        }
        self.layers[layer].up_to = self.forward;
    }

    /// Sets what resemblance adds to each expert of a layer.
    fn listen(&mut self, layer: usize) {
        let mut likeness = [0.0; HISTORY];
        let mut sums = [0.0f32; 8];
        let scale = if self.overlap_most > 0.0 { 1.0 / self.overlap_most } else { 0.0 };
        for (likeness, overlap) in likeness.chunks_exact_mut(8).zip(self.overlap.chunks_exact(8)) {
            for lane in 0..8 {
                let share = overlap[lane] * scale;
                let square = share * share;
                likeness[lane] = square * square * square;
                sums[lane] += likeness[lane];
            }
        }
        let strength = STRENGTH / (DOUBT + sums.iter().sum::<f32>());
        self.echoes.clear();
        self.echoes.resize(self.numbering.range(layer).len(), 0.0);
        let now = position(self.forward);
        let mut touched = [0u64; WORDS];
        for (chunk, likeness) in likeness.chunks_exact(8).enumerate() {
            if likeness.iter().fold(0.0, |most: f32, &one| most.max(one)) * strength < NEGLIGIBLE {
                continue;
            }
            for (lane, likeness) in
                likeness.iter().enumerate().filter(|(_, one)| **one * strength >= NEGLIGIBLE)
            {
                let similar = chunk * 8 + lane;
                let age = (now + HISTORY - similar) % HISTORY;
                for (after, share) in AFTERMATH.into_iter().enumerate().take(age) {
                    let at = (similar + after + 1) % HISTORY;
                    self.weight[at] += strength * share * likeness;
                    touched[at / 64] |= 1 << (at % 64);
                }
            }
        }
        let Layer { first_word, words, .. } = self.layers[layer];
        for at in touched
            .into_iter()
            .enumerate()
            .flat_map(|(word, bits)| Bits(bits).map(move |bit| word * 64 + bit))
        {
            let weight = std::mem::take(&mut self.weight[at]);
            let row = first_word + at * words;
            for (word, &bits) in self.rows[row..row + words].iter().enumerate() {
                for bit in Bits(bits) {
                    self.echoes[word * 64 + bit] += weight;
                }
            }
        }
    }

    fn score(&self, number: usize, first: usize) -> f32 {
        let Known { last_use, uses } = self.experts[number];
        let age = usize::try_from(self.forward - last_use).unwrap_or(HISTORY);
        self.recency.get(age).map_or(0.0, |recency| uses * recency) + self.echoes[number - first]
    }

    fn score_all(&mut self, layer: usize) {
        self.catch_up(layer);
        self.listen(layer);
        let first = self.numbering.range(layer).start;
        let mut scores = std::mem::take(&mut self.scores);
        scores.clear();
        scores.extend(self.residents.of(layer).iter().map(|&number| self.score(number as usize, first)));
        self.scores = scores;
        self.scored = Some(layer);
    }
}

/// The positions of the bits that are set, ascending.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        (self.0 != 0).then(|| {
            self.0 &= self.0 - 1;
            bit
        })
    }
}

/// Where the history keeps a forward.
#[expect(clippy::cast_possible_truncation, reason = "the remainder is below HISTORY")]
const fn position(forward: u64) -> usize {
    (forward % HISTORY as u64) as usize
}

impl CachePolicy for Echo {
    fn requested(&mut self, layer: LayerId) {
        let Some(layer) = self.numbering.layer(layer) else { return };
        let mut fade = LAYER_FADE;
        if self.layer.is_none_or(|before| layer <= before) {
            self.begin();
            fade *= FORWARD_FADE;
        }
        self.layer = Some(layer);
        self.scored = None;
        self.overlap.iter_mut().for_each(|overlap| *overlap *= fade);
        self.overlap_most *= fade;
        self.catch_up(layer);
    }

    fn accessed(&mut self, key: ExpertKey, _hit: bool) {
        let Some((layer, number)) = self.place(key) else { return };
        let now = position(self.forward);
        let expert = &mut self.experts[number];
        let age = usize::try_from(self.forward - expert.last_use).unwrap_or(HISTORY);
        let uses = self.recency.get(age).map_or(0.0, |recency| expert.uses * recency) + 1.0;
        *expert = Known { last_use: self.forward, uses };
        self.overlap_most += 1.0;
        let used = &mut self.used[number];
        used[now / 64] &= !(1 << (now % 64));
        for (bits, overlap) in used.iter().zip(self.overlap.chunks_exact_mut(64)) {
            Bits(*bits).for_each(|bit| overlap[bit] += 1.0);
        }
        used[now / 64] |= 1 << (now % 64);
        let Layer { first_word, words, .. } = self.layers[layer];
        let expert = key.expert.index();
        self.rows[first_word + now * words + expert / 64] |= 1 << (expert % 64);
    }

    fn inserted(&mut self, key: ExpertKey) {
        let Some((layer, number)) = self.place(key) else { return };
        if !self.residents.contains(number) {
            self.residents.insert(layer, number);
            if self.scored == Some(layer) {
                self.scores.push(self.score(number, number - key.expert.index()));
            }
        }
    }

    fn removed(&mut self, key: ExpertKey) {
        let Some((layer, number)) = self.place(key) else { return };
        if let Some(place) = self.residents.remove(layer, number)
            && self.scored == Some(layer)
        {
            self.scores.swap_remove(place);
        }
    }

    fn victim(&mut self, _incoming: Option<ExpertKey>, evictable: &dyn Evictable) -> Verdict {
        let Some(layer) = self.numbering.layer(evictable.layer()) else { return Verdict::Bypass };
        if self.scored != Some(layer) {
            self.score_all(layer);
        }
        let mut coldest: Option<(f32, u64, ExpertKey)> = None;
        for (&number, &score) in self.residents.of(layer).iter().zip(&self.scores) {
            if coldest.is_some_and(|(least, ..)| score > least) {
                continue;
            }
            let last_use = self.experts[number as usize].last_use;
            let colder =
                coldest.is_none_or(|(least, last, _)| score < least || (score == least && last_use < last));
            let key = self.numbering.key_in(layer, number as usize);
            if colder && evictable.contains(key) {
                coldest = Some((score, last_use, key));
            }
        }
        coldest.map_or(Verdict::Bypass, |(_, _, key)| Verdict::Evict(key))
    }
}
