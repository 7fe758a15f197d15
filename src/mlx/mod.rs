//! The only module that names MLX: banks that MLX reads in place, and the stock compute family.

mod bank;
mod compose;
//mod forward;
mod ops;
mod stock;

pub use mlx_rs::Array;

pub(crate) use bank::{BankArray, mlx_bank};
pub(crate) use compose::compose;
//pub(crate) use forward::StockForward;
pub(crate) use stock::StockTier;

/// What MLX answered when it refused an operation.
pub type MlxError = mlx_rs::error::Exception;
