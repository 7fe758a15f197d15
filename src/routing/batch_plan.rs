//! What a forward must compute: each expert once, with every row that uses it.

use std::{ops::Range, slice};

use super::routes::{RouteError, Routes};
use crate::ids::ExpertId;

/// One row's use of an expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertUse {
    /// The row (token) of the batch.
    pub row: u32,
    /// The rank of the expert within the row.
    pub rank: u32,
    /// The position of (row, rank) in the plan's row-major order: where this use's output belongs in a
    /// `[pairs, hidden]` array.
    pub pair: u32,
    /// What the expert's output is multiplied with.
    pub weight: f32,
}

/// One expert with the rows that use it. [`BatchPlan::uses`] gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// The expert.
    pub expert: ExpertId,
    first_use: u32,
    uses: u32,
}

impl Job {
    /// The job's uses, as positions in [`BatchPlan::all_uses`].
    #[must_use]
    pub const fn use_range(&self) -> Range<usize> {
        self.first_use as usize..(self.first_use + self.uses) as usize
    }

    /// How many rows use the expert. At least 1.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.uses as usize
    }
}

/// One term of a row's sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankedPair {
    /// The position of (row, rank) in row-major order.
    pub pair: u32,
    /// The expert.
    pub expert: ExpertId,
    /// What its output is multiplied with.
    pub weight: f32,
}

/// The plan of one layer's forward: unique experts in first-seen order, each with its uses, and for each row its terms in
/// rank order.
///
/// A plan says how many experts the batch needs ([`BatchPlan::unique_experts`]) before anything is read. It depends on the
/// routes alone, never on what is resident.
///
/// ```
/// use streamed_experts::{BatchPlan, Routes};
///
/// // Two tokens with two experts each, of eight: three different ones.
/// let routes = Routes::from_top_k(2, 2, &[5, 1, 1, 7], &[0.6, 0.4, 0.7, 0.3], 8)?;
/// let plan = BatchPlan::new(&routes, 8)?;
/// assert_eq!(plan.unique_experts(), 3);
/// // Expert 1 computes both rows at once; with two working slots the layer takes two waves.
/// assert_eq!(plan.jobs()[1].rows(), 2);
/// assert_eq!(plan.waves(2).count(), 2);
/// # Ok::<(), streamed_experts::RouteError>(())
/// ```
///
/// # Invariants
/// 1. `jobs` holds each expert of the routes once, in the order in which row-major (row, rank) first names them.
/// 2. The jobs' ranges into `uses` are consecutive, not empty, and cover it; so every pair is in exactly one job.
/// 3. Within a job, uses ascend by row.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchPlan {
    routes: Routes,
    jobs: Vec<Job>,
    uses: Vec<ExpertUse>,
    pair_jobs: Vec<u32>,
}

impl BatchPlan {
    /// The plan of `routes` in a layer of `experts_in_layer` experts.
    ///
    /// # Errors
    /// [`RouteError::NoSuchExpert`] if the routes, made for a wider layer, name an expert that this one does not have.
    /// The other faults, zero rows among them, were refused when the routes were made.
    pub fn new(routes: &Routes, experts_in_layer: u32) -> Result<Self, RouteError> {
        const UNSEEN: u32 = u32::MAX;
        let mut job_of_expert = vec![UNSEEN; experts_in_layer.min(routes.experts_in_layer()) as usize];
        let mut jobs: Vec<Job> = Vec::with_capacity(job_of_expert.len().min(routes.pairs()));
        let mut pair_jobs = Vec::with_capacity(routes.pairs());
        for (pair, &expert) in routes.experts().iter().enumerate() {
            let Some(job) = job_of_expert.get_mut(expert.index()) else {
                let row = row_of_pair(routes, pair);
                let rank = pair - routes.row_pairs(row).start;
                return Err(RouteError::NoSuchExpert { row, rank, expert, experts_in_layer });
            };
            if *job == UNSEEN {
                *job = index_u32(jobs.len());
                jobs.push(Job { expert, first_use: 0, uses: 0 });
            }
            jobs[*job as usize].uses += 1;
            pair_jobs.push(*job);
        }
        let uses = place_uses(routes, &mut jobs, &pair_jobs);
        Ok(Self { routes: routes.clone(), jobs, uses, pair_jobs })
    }

    /// How many rows (tokens) the batch has. At least 1.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.routes.rows()
    }

    /// How many (row, rank) pairs the batch has: expert rows to compute.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.routes.pairs()
    }

    /// The size of the union: how many different experts the batch needs. 0 if no row has any.
    #[must_use]
    pub fn unique_experts(&self) -> usize {
        self.jobs.len()
    }

    /// The routes that the plan was made from.
    #[must_use]
    pub const fn routes(&self) -> &Routes {
        &self.routes
    }

    /// One job per unique expert, in first-seen order.
    #[must_use]
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// The uses of one of this plan's jobs, ascending by row.
    ///
    /// # Panics
    /// If `job` is another plan's and lies beyond this one's uses.
    #[must_use]
    pub fn uses(&self, job: &Job) -> &[ExpertUse] {
        &self.uses[job.use_range()]
    }

    /// The uses of all jobs, one job after the other: `[pairs]`.
    #[must_use]
    pub fn all_uses(&self) -> &[ExpertUse] {
        &self.uses
    }

    /// For each pair in row-major order, the position of its job in [`BatchPlan::jobs`]: `[pairs]`.
    #[must_use]
    pub fn pair_jobs(&self) -> &[u32] {
        &self.pair_jobs
    }

    /// The jobs in order, cut into slices of at most `working_slots`; only the last may be shorter. Wave `n` begins with
    /// job `n × working_slots`.
    ///
    /// # Panics
    /// If `working_slots` is 0.
    pub fn waves(&self, working_slots: usize) -> slice::Chunks<'_, Job> {
        self.jobs.chunks(working_slots)
    }

    /// Whether `row` has any expert. A row without has no output but its shared row, and needs one.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row_has_experts(&self, row: usize) -> bool {
        !self.routes.row_pairs(row).is_empty()
    }

    /// The pair indices of `row`, in rank order.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row_pairs(&self, row: usize) -> Range<usize> {
        self.routes.row_pairs(row)
    }

    /// The terms of `row` in rank order: the order in which they are added up.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> impl ExactSizeIterator<Item = RankedPair> + '_ {
        self.row_pairs(row).map(|pair| RankedPair {
            pair: index_u32(pair),
            expert: self.routes.experts()[pair],
            weight: self.routes.weights()[pair],
        })
    }
}

/// Gives each job its range, and puts each pair into its job's range, by row.
fn place_uses(routes: &Routes, jobs: &mut [Job], pair_jobs: &[u32]) -> Vec<ExpertUse> {
    let mut next_use = Vec::with_capacity(jobs.len());
    let mut first_use = 0;
    for job in jobs {
        job.first_use = first_use;
        next_use.push(first_use as usize);
        first_use += job.uses;
    }
    let mut uses = vec![ExpertUse { row: 0, rank: 0, pair: 0, weight: 0.0 }; pair_jobs.len()];
    for row in 0..routes.rows() {
        for (rank, pair) in routes.row_pairs(row).enumerate() {
            let next = &mut next_use[pair_jobs[pair] as usize];
            uses[*next] = ExpertUse {
                row: index_u32(row),
                rank: index_u32(rank),
                pair: index_u32(pair),
                weight: routes.weights()[pair],
            };
            *next += 1;
        }
    }
    uses
}

/// The row that `pair` belongs to. Rows without experts share an offset with their successor.
fn row_of_pair(routes: &Routes, pair: usize) -> usize {
    routes.offsets().partition_point(|&offset| offset as usize <= pair) - 1
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "routes hold at most MAX_PAIRS rows and pairs, below u32::MAX"
)]
const fn index_u32(index: usize) -> u32 {
    index as u32
}
