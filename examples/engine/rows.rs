//! Whether the dense part takes a batch's rows together or one by one.

use streamed_experts::mlx_rs::{Array, ops::concatenate, ops::indexing::IndexOp};

use super::Failure;

/// How dense layers compute several rows.
///
/// MLX picks its kernels by the number of rows, so a row's last bits may depend on how many came with it. One by one they
/// cannot. The experts need no such care: in the fixed kernel families a row has the same bits in any company.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// In one product: faster.
    #[default]
    Together,
    /// In a product of its own each: bit for bit what decoding the tokens singly gives.
    OneByOne,
}

impl Rows {
    /// `forward` of `x` `[1, rows, width]`, or of each row `[1, 1, width]` with its number.
    pub fn each(
        self,
        x: &Array,
        mut forward: impl FnMut(&Array, i32) -> Result<Array, Failure>,
    ) -> Result<Array, Failure> {
        if self == Self::Together || x.dim(1) == 1 {
            return forward(x, 0);
        }
        let one = |row: i32| forward(&x.index((.., row..row + 1, ..)), row);
        let rows = (0..x.dim(1)).map(one).collect::<Result<Vec<_>, _>>()?;
        Ok(concatenate(&rows, 1)?)
    }
}
