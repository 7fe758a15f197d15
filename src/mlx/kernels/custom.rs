//! MLX's custom-kernel call, on the backend that MLX has.
//!
//! # Soundness
//! *Type, bounds*: `dispatch` is unsafe, because a kernel may touch any memory; [`super::tier`] holds the argument for
//! ours. *Initialisation*: handles are used only after MLX reported success. *Lifetime*: MLX copies strings and
//! counts its own references to arrays and kernels; a lazy graph keeps what it needs. *Threads*: a handle is used by one
//! thread at a time.
#![allow(unsafe_code)]

use std::{
    cell::OnceCell,
    ffi::{CString, c_char},
};

use mlx_rs::{Array, Dtype, Stream, error::Exception};

use crate::{
    compute::gpu::{Call, KernelName, Parameter, cuda_source},
    formats::FloatType,
    mlx::default_device_is_gpu,
};

/// Where MLX runs custom kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Apple's GPUs.
    Metal,
    /// NVIDIA's.
    Cuda,
}

impl Backend {
    /// The backend of MLX's default device; `None` if that has no custom kernels (the CPU).
    pub(crate) fn of_default_device() -> Option<Self> {
        if !default_device_is_gpu() {
            return None;
        }
        // An operation through mlx-rs installed its error handler when the device was asked for.
        let (mut metal, mut cuda) = (false, false);
        // SAFETY: MLX writes one bool.
        let metal_known = unsafe { mlx_sys::mlx_metal_is_available(&mut metal) } == 0;
        // SAFETY: as above.
        let cuda_known = unsafe { mlx_sys::mlx_cuda_is_available(&mut cuda) } == 0;
        match (metal_known && metal, cuda_known && cuda) {
            (true, _) => Some(Self::Metal),
            (false, true) => Some(Self::Cuda),
            _ => None,
        }
    }
}

/// Our kernels on one backend, made as they are first needed.
#[derive(Debug)]
pub(crate) struct Kernels {
    backend: Backend,
    compiled: [OnceCell<Compiled>; KernelName::COUNT],
}

/// A clone makes its own as it needs them: MLX's handles stay on one thread.
impl Clone for Kernels {
    fn clone(&self) -> Self {
        Self::new(self.backend)
    }
}

impl Kernels {
    pub(crate) fn new(backend: Backend) -> Self {
        Self { backend, compiled: Default::default() }
    }

    /// The backend they run on.
    pub(crate) const fn backend(&self) -> Backend {
        self.backend
    }

    /// The call's output, unevaluated.
    ///
    /// # Safety
    /// The inputs must be row-contiguous arrays of the types in `call.inputs`, with the shapes, alignment and index ranges
    /// that the kernel's contract asks for. They are read when the output is evaluated, so the memory they lie in must
    /// hold its contents until then.
    pub(crate) unsafe fn dispatch(&self, call: &Call, inputs: &[&Array]) -> Result<Array, Exception> {
        let cell = &self.compiled[call.kernel as usize];
        let compiled = match cell.get() {
            Some(compiled) => compiled,
            None => {
                let compiled = self.compile(call)?;
                cell.get_or_init(|| compiled)
            }
        };
        // SAFETY: the caller keeps the kernel's contract.
        unsafe { compiled.apply(call, inputs) }
    }

    fn compile(&self, call: &Call) -> Result<Compiled, Exception> {
        let names = call.inputs.iter().map(|input| input.name).collect::<Vec<_>>();
        let text = match self.backend {
            Backend::Metal => (call.kernel.header().to_owned(), call.kernel.body().to_owned()),
            Backend::Cuda => cuda_source(call.kernel),
        };
        match self.backend {
            Backend::Metal => metal::Kernel::new(call.kernel, &names, text).map(Compiled::Metal),
            Backend::Cuda => cuda::Kernel::new(call.kernel, &names, text).map(Compiled::Cuda),
        }
    }
}

/// A kernel's text as MLX takes it. MLX compiles and keeps one function for each set of template arguments and types.
#[derive(Debug)]
enum Compiled {
    Metal(metal::Kernel),
    Cuda(cuda::Kernel),
}

impl Compiled {
    /// # Safety
    /// As [`Kernels::dispatch`].
    unsafe fn apply(&self, call: &Call, inputs: &[&Array]) -> Result<Array, Exception> {
        let handles: Vec<mlx_sys::mlx_array> = inputs.iter().map(|input| input.as_ptr()).collect();
        let (first, count) = (handles.as_ptr(), handles.len());
        // SAFETY: the handles are live; MLX counts its own references to them.
        let raw = unsafe { mlx_sys::mlx_vector_array_new_data(first, count) };
        let inputs = Arrays { raw };
        // SAFETY: makes an empty list.
        let mut outputs = Arrays { raw: unsafe { mlx_sys::mlx_vector_array_new() } };
        let stream = Stream::thread_local_or_default();
        let status = match self {
            // SAFETY: every handle is live for the call; the caller keeps the kernel's contract.
            Self::Metal(kernel) => unsafe { kernel.apply(call, &inputs, &mut outputs, stream.as_ptr()) },
            // SAFETY: as above.
            Self::Cuda(kernel) => unsafe { kernel.apply(call, &inputs, &mut outputs, stream.as_ptr()) },
        };
        if status? != 0 {
            return Err(refused("to run", call.kernel));
        }
        let mut output = mlx_sys::mlx_array { ctx: std::ptr::null_mut() };
        // SAFETY: the list is live; MLX checks the index and writes a handle that we own.
        let status = unsafe { mlx_sys::mlx_vector_array_get(&mut output, outputs.raw, 0) };
        if status != 0 {
            return Err(refused("the output of", call.kernel));
        }
        // SAFETY: the handle was just made, and nobody else owns it.
        Ok(unsafe { Array::from_ptr(output) })
    }
}

/// The same calls exist once for each backend, under names of their own.
macro_rules! backend {
    ($module:ident, $last:expr, $kernel:ident, $new:ident, $free:ident, $apply:ident, $config:ident, $config_new:ident,
     $config_free:ident, $output:ident, $grid:ident, $threadgroup:ident, $type:ident, $int:ident, $bool:ident) => {
        mod $module {
            use super::*;

            #[derive(Debug)]
            pub(super) struct Kernel {
                raw: mlx_sys::$kernel,
            }

            // SAFETY: the handle owns a C++ closure over strings, without thread-local state. It is not Sync, so that one
            // thread at a time uses it.
            unsafe impl Send for Kernel {}

            impl Kernel {
                pub(super) fn new(
                    kernel: KernelName,
                    inputs: &[&str],
                    (header, body): (String, String),
                ) -> Result<Self, Exception> {
                    let (inputs, outputs) = (Strings::new(inputs)?, Strings::new(&[kernel.output()])?);
                    let (name, header, body) =
                        (c_string(kernel.name())?, c_string(&header)?, c_string(&body)?);
                    let (name, header, body) = (name.as_ptr(), header.as_ptr(), body.as_ptr());
                    let (inputs, outputs) = (&inputs.raw, &outputs.raw);
                    // SAFETY: the strings end with 0 and live through the call, as the two lists do; MLX copies all.
                    let raw = unsafe { mlx_sys::$new(name, *inputs, *outputs, body, header, false, $last) };
                    if raw.ctx.is_null() { Err(refused("to make", kernel)) } else { Ok(Self { raw }) }
                }

                /// MLX's status.
                ///
                /// # Safety
                /// As [`Kernels::dispatch`].
                pub(super) unsafe fn apply(
                    &self,
                    call: &Call,
                    inputs: &Arrays,
                    outputs: &mut Arrays,
                    stream: mlx_sys::mlx_stream,
                ) -> Result<i32, Exception> {
                    let config = Config::of(call)?;
                    // SAFETY: every handle is live for the call; the caller keeps the kernel's contract.
                    Ok(unsafe { mlx_sys::$apply(&mut outputs.raw, self.raw, inputs.raw, config.raw, stream) })
                }
            }

            impl Drop for Kernel {
                fn drop(&mut self) {
                    // SAFETY: made by `new`, freed once.
                    unsafe { mlx_sys::$free(self.raw) };
                }
            }

            struct Config {
                raw: mlx_sys::$config,
            }

            impl Config {
                fn of(call: &Call) -> Result<Self, Exception> {
                    // SAFETY: makes an empty configuration.
                    let config = Self { raw: unsafe { mlx_sys::$config_new() } };
                    let ([x, y, z], [a, b, c]) = (call.grid, call.threadgroup);
                    let (shape, output) = (&call.shape, dtype(call.output).into());
                    let statuses = [
                        // SAFETY: the shape has as many entries as are named.
                        unsafe { mlx_sys::$output(config.raw, shape.as_ptr(), shape.len(), output) },
                        // SAFETY: the configuration is live.
                        unsafe { mlx_sys::$grid(config.raw, x, y, z) },
                        // SAFETY: as above.
                        unsafe { mlx_sys::$threadgroup(config.raw, a, b, c) },
                    ];
                    if statuses != [0; 3] {
                        return Err(refused("to configure", call.kernel));
                    }
                    for &(name, value) in &call.parameters {
                        config.parameter(call.kernel, name, value)?;
                    }
                    Ok(config)
                }

                fn parameter(
                    &self,
                    kernel: KernelName,
                    name: &str,
                    value: Parameter,
                ) -> Result<(), Exception> {
                    let name = c_string(name)?;
                    let status = match value {
                        // SAFETY: the configuration is live, the name ends with 0, and MLX copies it.
                        Parameter::Type(kind) => unsafe {
                            mlx_sys::$type(self.raw, name.as_ptr(), dtype(kind).into())
                        },
                        // SAFETY: as above.
                        Parameter::Int(value) => unsafe { mlx_sys::$int(self.raw, name.as_ptr(), value) },
                        // SAFETY: as above.
                        Parameter::Bool(value) => unsafe { mlx_sys::$bool(self.raw, name.as_ptr(), value) },
                    };
                    if status == 0 { Ok(()) } else { Err(refused("a parameter of", kernel)) }
                }
            }

            impl Drop for Config {
                fn drop(&mut self) {
                    // SAFETY: made by `of`, freed once.
                    unsafe { mlx_sys::$config_free(self.raw) };
                }
            }
        }
    };
}

backend!(
    metal,
    false,
    mlx_fast_metal_kernel,
    mlx_fast_metal_kernel_new,
    mlx_fast_metal_kernel_free,
    mlx_fast_metal_kernel_apply,
    mlx_fast_metal_kernel_config,
    mlx_fast_metal_kernel_config_new,
    mlx_fast_metal_kernel_config_free,
    mlx_fast_metal_kernel_config_add_output_arg,
    mlx_fast_metal_kernel_config_set_grid,
    mlx_fast_metal_kernel_config_set_thread_group,
    mlx_fast_metal_kernel_config_add_template_arg_dtype,
    mlx_fast_metal_kernel_config_add_template_arg_int,
    mlx_fast_metal_kernel_config_add_template_arg_bool
);

backend!(
    cuda,
    0,
    mlx_fast_cuda_kernel,
    mlx_fast_cuda_kernel_new,
    mlx_fast_cuda_kernel_free,
    mlx_fast_cuda_kernel_apply,
    mlx_fast_cuda_kernel_config,
    mlx_fast_cuda_kernel_config_new,
    mlx_fast_cuda_kernel_config_free,
    mlx_fast_cuda_kernel_config_add_output_arg,
    mlx_fast_cuda_kernel_config_set_grid,
    mlx_fast_cuda_kernel_config_set_thread_group,
    mlx_fast_cuda_kernel_config_add_template_arg_dtype,
    mlx_fast_cuda_kernel_config_add_template_arg_int,
    mlx_fast_cuda_kernel_config_add_template_arg_bool
);

/// A list of arrays that is freed.
struct Arrays {
    raw: mlx_sys::mlx_vector_array,
}

impl Drop for Arrays {
    fn drop(&mut self) {
        // SAFETY: made by MLX for us, freed once.
        unsafe { mlx_sys::mlx_vector_array_free(self.raw) };
    }
}

/// A list of strings that is freed.
struct Strings {
    raw: mlx_sys::mlx_vector_string,
}

impl Strings {
    fn new(values: &[&str]) -> Result<Self, Exception> {
        let owned: Vec<CString> = values.iter().map(|value| c_string(value)).collect::<Result<_, _>>()?;
        let mut pointers: Vec<*const c_char> = owned.iter().map(|value| value.as_ptr()).collect();
        let (first, count) = (pointers.as_mut_ptr(), pointers.len());
        // SAFETY: as many pointers as named, to strings that end with 0; MLX copies them.
        let raw = unsafe { mlx_sys::mlx_vector_string_new_data(first, count) };
        Ok(Self { raw })
    }
}

impl Drop for Strings {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once.
        unsafe { mlx_sys::mlx_vector_string_free(self.raw) };
    }
}

fn c_string(text: &str) -> Result<CString, Exception> {
    CString::new(text).map_err(|_| Exception::custom("a kernel's text holds a zero byte"))
}

fn refused(what: &str, kernel: KernelName) -> Exception {
    Exception::custom(format!("MLX refused {what} the kernel {}", kernel.name()))
}

pub(super) const fn dtype(kind: FloatType) -> Dtype {
    match kind {
        FloatType::F32 => Dtype::Float32,
        FloatType::F16 => Dtype::Float16,
        FloatType::Bf16 => Dtype::Bfloat16,
    }
}
