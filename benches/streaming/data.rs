//! The files: a checkpoint, and a slab packed from it.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use streamed_experts::{ExpertSource, PackOptions, open_source, pack};

pub(crate) const HIDDEN: usize = 2048;
const INTERMEDIATE: usize = 768;
const GROUP: usize = 64;

#[derive(Debug)]
pub(crate) struct Data {
    folder: tempfile::TempDir,
}

impl Data {
    /// Writes both, and flushes them to the drive.
    pub(crate) fn write(experts: u32) -> Self {
        let folder =
            tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder beneath the target folder");
        let data = Self { folder };
        write_checkpoint(&data.checkpoint_path(), experts as usize).expect("a checkpoint");
        let options = PackOptions::default();
        pack(&*data.stock(), data.slab_path(), &options, |_| ControlFlow::Continue(())).expect("a slab");
        data
    }

    pub(crate) fn slab_path(&self) -> PathBuf {
        self.folder.path().join("experts.slab")
    }

    fn checkpoint_path(&self) -> PathBuf {
        self.folder.path().join("checkpoint")
    }

    /// The file with the checkpoint's experts.
    pub(crate) fn shard_path(&self) -> PathBuf {
        self.checkpoint_path().join("model.safetensors")
    }

    pub(crate) fn slab(&self) -> Arc<dyn ExpertSource> {
        open_source(self.slab_path()).expect("the slab opens").into()
    }

    pub(crate) fn stock(&self) -> Arc<dyn ExpertSource> {
        open_source(self.checkpoint_path()).expect("the checkpoint opens").into()
    }

    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slab().tiers()[0].layout.slot_bytes()
    }
}

/// One layer of `qwen3_moe`, stacked: random codes, and scales that keep the outputs near 1.
fn write_checkpoint(folder: &Path, experts: usize) -> std::io::Result<()> {
    fs::create_dir(folder)?;
    fs::write(
        folder.join("config.json"),
        format!(
            r#"{{"model_type": "qwen3_moe", "hidden_size": {HIDDEN}, "num_hidden_layers": 1, "num_experts": {experts},
                "num_experts_per_tok": 8, "moe_intermediate_size": {INTERMEDIATE}, "intermediate_size": {INTERMEDIATE},
                "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true,
                "quantization": {{"group_size": {GROUP}, "bits": 4, "mode": "affine"}}}}"#
        ),
    )?;
    let shapes =
        [("gate", INTERMEDIATE, HIDDEN), ("up", INTERMEDIATE, HIDDEN), ("down", HIDDEN, INTERMEDIATE)];
    let (mut entries, mut lengths, mut at) = (Vec::new(), Vec::new(), 0);
    for (name, rows, columns) in shapes {
        for (part, dtype, width, bytes) in [
            ("weight", "U32", columns / 8, 4),
            ("scales", "BF16", columns / GROUP, 2),
            ("biases", "BF16", columns / GROUP, 2),
        ] {
            let len = experts * rows * width * bytes;
            let name = format!("model.layers.0.mlp.switch_mlp.{name}_proj.{part}");
            entries.push(format!(
                r#""{name}":{{"dtype":"{dtype}","shape":[{experts},{rows},{width}],"data_offsets":[{at},{}]}}"#,
                at + len
            ));
            lengths.push((part, columns, len));
            at += len;
        }
    }
    let header = format!("{{{}}}", entries.join(","));
    let mut out = BufWriter::with_capacity(1 << 20, File::create(folder.join("model.safetensors"))?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut block = vec![0; 1 << 20];
    for (part, columns, mut left) in lengths {
        let scale = 0.25 / (columns as f32).sqrt() * if part == "biases" { -7.5 } else { 1.0 };
        let scale = half::bf16::from_f32(scale).to_le_bytes();
        while left > 0 {
            let len = left.min(block.len());
            match part {
                "weight" => random.fill(&mut block[..len]),
                _ => block[..len].chunks_exact_mut(2).for_each(|value| value.copy_from_slice(&scale)),
            }
            out.write_all(&block[..len])?;
            left -= len;
        }
    }
    out.into_inner()?.sync_all()
}
