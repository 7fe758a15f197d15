//! If this fails, a layer computes with another expert's weights, the process hangs between two layers, or memory goes
//! beyond the budget.

#[path = "../doubles/mod.rs"]
mod doubles;

mod ahead;
mod leases;
mod model;
mod plan;
mod policy;
mod pressure;
mod threads;
