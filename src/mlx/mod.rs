//! The only module that names MLX: banks that MLX reads in place, and the stock compute family.

mod bank;
mod compose;
mod convert;
mod forward;
pub(crate) mod kernels;
mod ops;
mod stock;

pub(crate) use mlx_rs::Array;

pub(crate) use bank::{BankArray, mlx_bank};
pub(crate) use convert::{
    array_to_rows, default_device_is_gpu, flatten, float_type, rows_to_array, shape_like, submit,
};
pub(crate) use forward::StockForward;
pub(crate) use stock::StockTier;

/// What MLX answered when it refused an operation.
pub(crate) type MlxError = mlx_rs::error::Exception;
