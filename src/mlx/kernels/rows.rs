//! Arrays as kernels take them.
//!
//! # Soundness
//! *Type, initialisation*: [`address`] asks for the data of live, evaluated arrays of the type it names, and uses the address
//! alone. *Lifetime, bounds, threads*: nothing is read through it.
#![allow(unsafe_code)]

use half::{bf16, f16};
use mlx_rs::{
    Array, Dtype,
    transforms::{async_eval, eval},
};

use super::custom::Backend;
use crate::{compute::gpu::padded, mlx::MlxError};

/// Bytes that arrays begin at a multiple of, so that kernels may load 16 B at a time.
pub(super) const ALIGNMENT_BYTES: usize = 16;

/// `array`, f32, f16, bf16 or u32, contiguous and aligned for kernels on `backend`.
///
/// CUDA: a copy, not waited for: to ask where an array lies would move it into memory shared with the host. Else: waits for
/// it, and copies it only if it is not so already.
///
/// # Errors
/// What MLX answers.
pub(super) fn settled(array: &Array, backend: Option<Backend>) -> Result<Array, MlxError> {
    if backend == Some(Backend::Cuda) {
        // Submitted while the caller holds `array`: MLX cannot put the result into its memory.
        let copy = copied(&array.contiguous()?)?;
        async_eval([&copy])?;
        return Ok(copy);
    }
    eval([array])?;
    let mut array = array.clone();
    if !row_contiguous(&array)? {
        array = array.contiguous()?;
        eval([&array])?;
    }
    if !address(&array).is_multiple_of(ALIGNMENT_BYTES) {
        array = copied(&array)?;
        eval([&array])?;
    }
    Ok(array)
}

/// A product with 1 changes no bit, and MLX puts it into memory of its own.
fn copied(array: &Array) -> Result<Array, MlxError> {
    array.multiply(match array.dtype() {
        Dtype::Float32 => Array::from_slice(&[1.0f32], &[1]),
        Dtype::Float16 => Array::from_slice(&[f16::ONE], &[1]),
        Dtype::Bfloat16 => Array::from_slice(&[bf16::ONE], &[1]),
        _ => Array::from_slice(&[1u32], &[1]),
    })
}

/// Where an evaluated array's first element lies.
pub(super) fn address(array: &Array) -> usize {
    let handle = array.as_ptr();
    match array.dtype() {
        // SAFETY: the handle is a live, evaluated array of this type; the address alone is used.
        Dtype::Float32 => (unsafe { mlx_sys::mlx_array_data_float32(handle) }) as usize,
        // SAFETY: as above.
        Dtype::Float16 => (unsafe { mlx_sys::mlx_array_data_float16(handle) }) as usize,
        // SAFETY: as above.
        Dtype::Bfloat16 => (unsafe { mlx_sys::mlx_array_data_bfloat16(handle) }) as usize,
        // SAFETY: as above; callers have no arrays of other types.
        _ => (unsafe { mlx_sys::mlx_array_data_uint32(handle) }) as usize,
    }
}

/// Whether an evaluated array's elements lie one after the other.
fn row_contiguous(array: &Array) -> Result<bool, MlxError> {
    let mut contiguous = false;
    // SAFETY: the handle is a live, evaluated array; MLX writes one bool.
    let status = unsafe { mlx_sys::_mlx_array_is_row_contiguous(&mut contiguous, array.as_ptr()) };
    if status == 0 { Ok(contiguous) } else { Err(MlxError::custom("MLX did not say how an array lies")) }
}

/// An index array, padded.
pub(super) fn words(values: &[u32]) -> Array {
    let values = padded(values);
    Array::from_slice(&values, &[length(values.len())])
}

/// Several index arrays, padded and aligned, as views of one: under CUDA each array that the host has just written costs a page
/// fault in the kernel that first reads it.
pub(super) fn views<const N: usize>(parts: [&[u32]; N]) -> Result<[Array; N], MlxError> {
    let mut all = Vec::new();
    let places = parts.map(|part| {
        let (first, part) = (all.len(), padded(part));
        all.extend_from_slice(&part);
        all.resize(all.len().next_multiple_of(ALIGNMENT_BYTES / 4), 0);
        (first, part.len())
    });
    let array = Array::from_slice(&all, &[length(all.len())]);
    let mut views = Vec::with_capacity(N);
    for (first, count) in places {
        views.push(array.as_strided(&[length(count)][..], &[1i64][..], first)?);
    }
    views.try_into().map_err(|_| MlxError::custom("as many views as parts"))
}

/// Floats as the words that hold them.
pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn length(count: usize) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}
