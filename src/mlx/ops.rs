//! Operations that mlx-rs does not offer: quantised products in modes other than affine, and take along an axis.
//!
//! # Soundness
//! *Type, bounds*: MLX checks shapes and dtypes and answers a status. *Initialisation*: the result handle is only used
//! after a status of 0. *Lifetime*: operands are borrowed; MLX counts its own references. *Threads*: handles stay on the
//! calling thread.
#![allow(unsafe_code)]

use std::ffi::CStr;

use mlx_rs::{Array, Stream, error::Exception};

/// Packed weights with what it takes to read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed<'a> {
    pub(crate) weight: &'a Array,
    pub(crate) scales: &'a Array,
    pub(crate) biases: Option<&'a Array>,
    pub(crate) format: Format,
}

/// MLX's name for a storage format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Format {
    pub(crate) mode: &'static CStr,
    pub(crate) bits: i32,
    pub(crate) group: i32,
}

/// x · Wᵀ.
pub(crate) fn quantized_matmul(x: &Array, packed: Packed<'_>) -> Result<Array, Exception> {
    call("quantized_matmul", x, packed, |result, biases, group, bits, stream| {
        // SAFETY: every handle is live for the call; `result` is a fresh handle.
        unsafe {
            mlx_sys::mlx_quantized_matmul(
                result,
                x.as_ptr(),
                packed.weight.as_ptr(),
                packed.scales.as_ptr(),
                biases,
                true,
                group,
                bits,
                packed.format.mode.as_ptr(),
                stream,
            )
        }
    })
}

/// x[j] · W[slots[j]]ᵀ for each j of the leading dimension.
pub(crate) fn gather_qmm(x: &Array, packed: Packed<'_>, slots: &Array) -> Result<Array, Exception> {
    call("gather_qmm", x, packed, |result, biases, group, bits, stream| {
        // SAFETY: every handle is live for the call; the empty handle means "no indices"; `result` is a fresh handle.
        unsafe {
            mlx_sys::mlx_gather_qmm(
                result,
                x.as_ptr(),
                packed.weight.as_ptr(),
                packed.scales.as_ptr(),
                biases,
                EMPTY,
                slots.as_ptr(),
                true,
                group,
                bits,
                packed.format.mode.as_ptr(),
                false,
                stream,
            )
        }
    })
}

/// Entries `index` of `axis`.
pub(crate) fn take(x: &Array, index: &Array, axis: i32) -> Result<Array, Exception> {
    let stream = Stream::thread_local_or_default();
    let mut result = EMPTY;
    // SAFETY: both handles and the stream are live for the call; `result` is a fresh handle.
    let status =
        unsafe { mlx_sys::mlx_take_axis(&mut result, x.as_ptr(), index.as_ptr(), axis, stream.as_ptr()) };
    made(status, result, || format!("take of {:?} along axis {axis} of {:?}", index.shape(), x.shape()))
}

const EMPTY: mlx_sys::mlx_array = mlx_sys::mlx_array { ctx: std::ptr::null_mut() };

fn call(
    name: &str,
    x: &Array,
    packed: Packed<'_>,
    operation: impl FnOnce(
        *mut mlx_sys::mlx_array,
        mlx_sys::mlx_array,
        mlx_sys::mlx_optional_int,
        mlx_sys::mlx_optional_int,
        mlx_sys::mlx_stream,
    ) -> i32,
) -> Result<Array, Exception> {
    let some = |value| mlx_sys::mlx_optional_int { value, has_value: true };
    let stream = Stream::thread_local_or_default();
    let mut result = EMPTY;
    let status = operation(
        &mut result,
        packed.biases.map_or(EMPTY, Array::as_ptr),
        some(packed.format.group),
        some(packed.format.bits),
        stream.as_ptr(),
    );
    made(status, result, || {
        format!(
            "{name} of x {:?} {:?} with weights {:?}, scales {:?} {:?}, {:?}",
            x.shape(),
            x.dtype(),
            packed.weight.shape(),
            packed.scales.shape(),
            packed.scales.dtype(),
            packed.format,
        )
    })
}

/// Takes ownership of an operation's result.
fn made(status: i32, result: mlx_sys::mlx_array, what: impl FnOnce() -> String) -> Result<Array, Exception> {
    if status != 0 {
        return Err(Exception::custom(format!("MLX refused {}", what())));
    }
    // SAFETY: the status says that the operation made an array, and nobody else owns its handle.
    Ok(unsafe { Array::from_ptr(result) })
}

/// A size as MLX wants it.
pub(crate) fn dimension<T: Copy + std::fmt::Display + TryInto<i32>>(size: T) -> Result<i32, Exception> {
    size.try_into().map_err(|_| Exception::custom(format!("{size} does not fit an MLX dimension")))
}
