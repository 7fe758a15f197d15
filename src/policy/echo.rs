//! What followed the last time that things looked like this.

use super::{CachePolicy, Evictable, ExpertNumbering, PolicyScope, Verdict, residents::Residents};
use crate::ids::{ExpertKey, LayerId};

/// How many forwards are remembered.
const HISTORY: usize = 128;
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
/// Forwards that weigh less are passed over.
const NEGLIGIBLE: f32 = 0.1;

/// Gives up the expert whose past requests say least about the next ones. Never bypasses.
///
/// Each of the last 128 forwards has a weight, and an expert's score is the sum of the weights of the forwards that used
/// it. A forward weighs more the newer it is (this part is a count that halves every 12 forwards, ghosts included), and
/// more the more alike the forwards just before it are to the present one: what followed then is likely to follow now.
/// Two forwards are alike if the same experts were used, in the layers up to this one and, fading, in the forwards
/// before; their likeness is the share of equal experts, to the sixth power.
///
/// A forward begins when a request is for the same layer as the last request or an earlier one. So requests of several
/// sequences, interleaved by layer, are compared with a mixture, and the policy falls back to something near
/// decayed frequency. Routes alone are used, no weights, and nothing is learned that a restart would lose for long.
#[derive(Clone, Debug)]
pub struct Echo {
    numbering: ExpertNumbering,
    residents: Residents,
    /// For each word of the history in turn, a word for each expert: bit `p` of all words says whether the expert
    /// was used by the newest forward `f` with `f % HISTORY == p`.
    used: Box<[u64]>,
    /// The last forward that used the expert.
    last_use: Box<[u64]>,
    /// The last forward for which the bits of a layer are right.
    up_to: Box<[u64]>,
    forward: u64,
    layer: Option<usize>,
    /// By how many forwards back: how many experts are equal, faded.
    overlap: [f32; HISTORY],
    /// What `overlap` would be if all were equal.
    overlap_most: f32,
    recency: [f32; HISTORY],
    /// By position in the history: what the forward weighs.
    weight: [f32; HISTORY],
    /// The positions that are not negligible.
    weighty: [u64; WORDS],
    /// The layer whose residents `scores` are for, in the order of its list.
    scored: Option<usize>,
    scores: Vec<f32>,
}

impl Echo {
    /// A policy for `scope`. Allocates 28 bytes for each expert.
    #[must_use]
    pub fn new(scope: &PolicyScope<'_>) -> Self {
        let numbering = ExpertNumbering::new(scope);
        let most = scope.layers.iter().map(|layer| layer.resident_slots).max().unwrap_or(0);
        let mut recency = [1.0; HISTORY];
        for age in 1..HISTORY {
            recency[age] = recency[age - 1] * FADE;
        }
        Self {
            residents: Residents::new(scope, &numbering),
            used: vec![0; WORDS * numbering.len()].into(),
            last_use: vec![0; numbering.len()].into(),
            up_to: vec![0; scope.layers.len()].into(),
            forward: 0,
            layer: None,
            overlap: [0.0; HISTORY],
            overlap_most: 0.0,
            recency,
            weight: [0.0; HISTORY],
            weighty: [0; WORDS],
            scored: None,
            scores: Vec::with_capacity(most as usize),
            numbering,
        }
    }

    /// [`Echo::new`] as a factory for a manager.
    #[must_use]
    pub fn boxed(scope: &PolicyScope<'_>) -> Box<dyn CachePolicy> {
        Box::new(Self::new(scope))
    }

    fn place(&self, key: ExpertKey) -> Option<(usize, usize)> {
        Some((self.numbering.layer(key.layer)?, self.numbering.number(key)?))
    }

    /// Forgets what a layer did more than `HISTORY` forwards ago.
    fn catch_up(&mut self, layer: usize) {
        let from = std::mem::replace(&mut self.up_to[layer], self.forward)
            .max(self.forward.saturating_sub(HISTORY as u64));
        let experts = self.numbering.range(layer);
        for forward in from + 1..=self.forward {
            let at = position(forward);
            let plane = at / 64 * self.numbering.len();
            for word in &mut self.used[plane + experts.start..plane + experts.end] {
                *word &= !(1 << (at % 64));
            }
        }
    }

    /// Weighs the forwards of the history as seen from the present one.
    fn weigh(&mut self) {
        let mut likeness = [0.0f32; HISTORY + AFTERMATH.len()];
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
        let mut weights = self.recency;
        for (after, share) in AFTERMATH.into_iter().enumerate() {
            for (weight, likeness) in weights.iter_mut().zip(&likeness[after + 1..]) {
                *weight += strength * share * likeness;
            }
        }
        let now = position(self.forward);
        self.weighty = [0; WORDS];
        for (back, &weight) in weights.iter().enumerate() {
            let at = (now + HISTORY - back) % HISTORY;
            self.weight[at] = weight;
            self.weighty[at / 64] |= u64::from(weight >= NEGLIGIBLE) << (at % 64);
        }
    }

    fn score(&self, number: usize) -> f32 {
        let mut score = 0.0;
        for (word, weighty) in self.weighty.iter().enumerate() {
            let mut bits = self.used[word * self.numbering.len() + number] & weighty;
            while bits != 0 {
                score += self.weight[word * 64 + bits.trailing_zeros() as usize];
                bits &= bits - 1;
            }
        }
        score
    }

    fn score_all(&mut self, layer: usize) {
        self.catch_up(layer);
        self.weigh();
        let mut scores = std::mem::take(&mut self.scores);
        scores.clear();
        scores.extend(self.residents.of(layer).iter().map(|&number| self.score(number as usize)));
        self.scores = scores;
        self.scored = Some(layer);
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
            self.forward += 1;
            fade *= FORWARD_FADE;
        }
        self.layer = Some(layer);
        self.scored = None;
        self.overlap.iter_mut().for_each(|overlap| *overlap *= fade);
        self.overlap_most *= fade;
        self.catch_up(layer);
    }

    fn accessed(&mut self, key: ExpertKey, _hit: bool) {
        let Some(number) = self.numbering.number(key) else { return };
        let now = position(self.forward);
        self.overlap_most += 1.0;
        self.last_use[number] = self.forward;
        for word in 0..WORDS {
            let plane = &mut self.used[word * self.numbering.len() + number];
            let mut bits = *plane;
            if word == now / 64 {
                bits &= !(1 << (now % 64));
                *plane |= 1 << (now % 64);
            }
            while bits != 0 {
                let at = word * 64 + bits.trailing_zeros() as usize;
                self.overlap[(now + HISTORY - at) % HISTORY] += 1.0;
                bits &= bits - 1;
            }
        }
    }

    fn inserted(&mut self, key: ExpertKey) {
        let Some((layer, number)) = self.place(key) else { return };
        if !self.residents.contains(number) {
            self.residents.insert(layer, number);
            if self.scored == Some(layer) {
                self.scores.push(self.score(number));
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
            let last_use = self.last_use[number as usize];
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
