//! Between MLX arrays and rows in host memory.

use mlx_rs::{Array, DeviceType, Dtype, transforms::async_eval};

use super::{MlxError, ops::dimension};
use crate::formats::FloatType;

/// Whether MLX computes on a GPU unless told otherwise.
pub(crate) fn default_device_is_gpu() -> bool {
    let device = mlx_rs::Device::try_default().and_then(|device| device.get_type());
    matches!(device, Ok(DeviceType::Gpu))
}

/// The float type of an array; `None` if it is not one that experts take.
pub(crate) fn float_type(array: &Array) -> Option<FloatType> {
    match array.dtype() {
        Dtype::Float32 => Some(FloatType::F32),
        Dtype::Float16 => Some(FloatType::F16),
        Dtype::Bfloat16 => Some(FloatType::Bf16),
        _ => None,
    }
}

/// `[rows, width]` from rows in host memory. Copies.
pub(crate) fn rows_to_array(rows: &[f32], width: i32) -> Result<Array, MlxError> {
    let count = dimension(rows.len())? / width.max(1);
    Ok(Array::from_slice(rows, &[count, width]))
}

/// The values of an array as f32, row-major. Evaluates and copies.
pub(crate) fn array_to_rows(array: &Array) -> Result<Vec<f32>, MlxError> {
    let flat = array.as_dtype(Dtype::Float32)?.reshape(&[-1])?.contiguous()?;
    let values = flat.try_as_slice::<f32>().map_err(|error| MlxError::custom(error.to_string()))?;
    Ok(values.to_vec())
}

/// `[rows, width]` from any leading dimensions.
pub(crate) fn flatten(array: &Array, width: usize) -> Result<Array, MlxError> {
    let width = i32::try_from(width).map_err(|_| MlxError::custom(format!("{width} is too wide for MLX")))?;
    array.reshape(&[-1, width])
}

/// The values of `array` in the shape and dtype of `like`.
pub(crate) fn shape_like(array: &Array, like: &Array) -> Result<Array, MlxError> {
    array.reshape(like.shape())?.as_dtype(like.dtype())
}

/// Starts to evaluate `array`.
pub(crate) fn submit(array: &Array) -> Result<(), MlxError> {
    async_eval([array])
}
