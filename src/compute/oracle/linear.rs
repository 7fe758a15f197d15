//! A linear layer over stored bytes.

use super::layer::{OracleError, check_rows};
use crate::formats::{
    DecodeError, ExpertView, FloatType, Part, Projection, ProjectionGeometry, Quantisation, check_length,
    decode_floats, dequantise_row,
};

#[derive(Clone, Copy, Debug)]
enum Storage {
    Plain(FloatType),
    Quantised(Quantisation),
}

/// y = W x + b over borrowed tensors, quantised or not: a router, or one projection of an expert.
///
/// W is `[rows, columns]`, rows being output features; bytes may lie at any alignment.
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a> {
    rows: usize,
    columns: usize,
    storage: Storage,
    weights: &'a [u8],
    scales: &'a [u8],
    biases: &'a [u8],
    bias: Option<(FloatType, &'a [u8])>,
}

impl<'a> Linear<'a> {
    /// A layer whose weights are stored as plain numbers.
    ///
    /// # Errors
    /// [`DecodeError::Length`] if `weights` is not `rows × columns` values of `kind`.
    pub fn plain(rows: u32, columns: u32, kind: FloatType, weights: &'a [u8]) -> Result<Self, DecodeError> {
        check_part(Part::Weight, rows, u64::from(columns).saturating_mul(kind.bytes()), weights)?;
        let storage = Storage::Plain(kind);
        let (rows, columns) = (rows as usize, columns as usize);
        Ok(Self { rows, columns, storage, weights, scales: &[], biases: &[], bias: None })
    }

    /// A layer with quantised weights. `biases` are the quantisation's own, empty where the format has none.
    ///
    /// # Errors
    /// A shape that the format cannot store, or arrays of another length than it has.
    pub fn quantised(
        geometry: ProjectionGeometry,
        weights: &'a [u8],
        scales: &'a [u8],
        biases: &'a [u8],
    ) -> Result<Self, DecodeError> {
        let ProjectionGeometry { rows, columns, quantisation } = geometry;
        let scale_row_bytes = quantisation.scales_per_row(columns)? * quantisation.scale_bytes();
        check_part(Part::Weight, rows, quantisation.weight_row_bytes(columns)?, weights)?;
        check_part(Part::Scales, rows, scale_row_bytes, scales)?;
        check_part(Part::Biases, rows, if quantisation.has_biases() { scale_row_bytes } else { 0 }, biases)?;
        let storage = Storage::Quantised(quantisation);
        let (rows, columns) = (rows as usize, columns as usize);
        Ok(Self { rows, columns, storage, weights, scales, biases, bias: None })
    }

    /// One projection of an expert, with its bias where the geometry has one.
    ///
    /// # Errors
    /// As [`Linear::quantised`], if the view's layout is not its geometry's.
    pub fn of_expert(expert: &ExpertView<'a>, projection: Projection) -> Result<Self, DecodeError> {
        let part = |part| expert.part(projection, part);
        let geometry = expert.geometry();
        let linear = Self::quantised(
            geometry.projection(projection),
            part(Part::Weight),
            part(Part::Scales),
            part(Part::Biases),
        )?;
        match geometry.bias {
            Some(kind) => linear.with_bias(kind, part(Part::Bias)),
            None => Ok(linear),
        }
    }

    /// The same layer with one value per output feature added (b above).
    ///
    /// # Errors
    /// [`DecodeError::Length`] if `bias` is not one value of `kind` per row.
    pub fn with_bias(mut self, kind: FloatType, bias: &'a [u8]) -> Result<Self, DecodeError> {
        check_length(Part::Bias, self.rows as u64 * kind.bytes(), bias)?;
        self.bias = Some((kind, bias));
        Ok(self)
    }

    /// Output features.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    #[must_use]
    pub const fn columns(&self) -> usize {
        self.columns
    }

    /// Dequantises row `row` of W into `out`.
    ///
    /// # Errors
    /// [`DecodeError::Length`] or [`DecodeError::Floats`] if `out` has not one place per column.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize, out: &mut [f64]) -> Result<(), DecodeError> {
        assert!(row < self.rows, "row {row} of a matrix of {} rows", self.rows);
        let of = |bytes: &'a [u8]| {
            let row_bytes = bytes.len() / self.rows;
            &bytes[row * row_bytes..(row + 1) * row_bytes]
        };
        match self.storage {
            Storage::Plain(kind) => decode_floats(kind, of(self.weights), out),
            Storage::Quantised(quantisation) => {
                dequantise_row(quantisation, of(self.weights), of(self.scales), of(self.biases), out)
            }
        }
    }

    /// y `[n, rows]` for x = `input`, `[n, columns]`. Each weight row is dequantised once, whatever n is.
    ///
    /// # Errors
    /// [`OracleError::Length`] if `input` is not whole rows.
    pub fn forward(&self, input: &[f64]) -> Result<Vec<f64>, OracleError> {
        let count = check_rows("input", input.len(), self.columns)?;
        let mut output = vec![0.0; count * self.rows];
        let mut bias = vec![0.0; self.rows];
        if let Some((kind, bytes)) = self.bias {
            decode_floats(kind, bytes, &mut bias)?;
        }
        let mut weights = vec![0.0; self.columns];
        for (row, bias) in bias.into_iter().enumerate() {
            self.row(row, &mut weights)?;
            for (index, input) in input.chunks_exact(self.columns).enumerate() {
                let product: f64 = weights.iter().zip(input).map(|(weight, x)| weight * x).sum();
                output[index * self.rows + row] = product + bias;
            }
        }
        Ok(output)
    }
}

fn check_part(part: Part, rows: u32, row_bytes: u64, bytes: &[u8]) -> Result<(), DecodeError> {
    check_length(part, row_bytes.saturating_mul(rows.into()), bytes)
}
