//! Generates text with a mixture-of-experts model whose experts stay on disk, all but a budget's worth of them.

#![allow(unreachable_pub, reason = "an example is a program; nothing of it is reached from outside")]

#[path = "../common/mod.rs"]
pub(crate) mod common;
#[path = "../engine/mod.rs"]
pub(crate) mod engine;
mod report;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use clap::Parser;
use common::{budget, bytes, family, memory, timed::Timed};
use engine::{
    Failure, chat,
    generate::{Generated, Request, generate},
    model::{Dense, Model},
    repository::Repository,
    sample::Sampler,
    tokens::Tokens,
};
use report::{Live, Outcome};
use streamed_experts::{Budget, ExecutorOptions, ExpertSource, Family, MemoryInfo, ResidencyPlan, mlx_rs};

/// What MLX may keep of freed memory for reuse: it is within no budget, so it stays small.
const MLX_CACHE_BYTES: usize = 32 << 20;

/// Generate text with a mixture-of-experts model, streaming its experts within a memory budget.
#[derive(Parser)]
#[command(
    after_help = "Sizes: 4GiB, 600MB, 1048576. Architectures: qwen3_moe, olmoe, glm4_moe, mixtral, gpt_oss, \
                  deepseek_v3."
)]
pub(crate) struct Args {
    /// A repository's directory: config.json, tokenizer.json and safetensors, as mlx-community has them
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// The text to go on from, or with --chat the message to answer
    #[arg(long)]
    prompt: String,
    /// Stop after so many new tokens, or where the model's context ends
    #[arg(long, default_value_t = 256)]
    max_tokens: usize,
    /// How much chance plays a part: 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.0, value_parser = temperature)]
    temperature: f64,
    /// Choose among the likeliest tokens that together have this probability; no effect at temperature 0
    #[arg(long, default_value_t = 1.0, value_parser = probability)]
    top_p: f64,
    /// Fixes the choices; no effect at temperature 0
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Put the prompt into the repository's chat template
    #[arg(long)]
    chat: bool,
    /// Memory for the model: dense part, key-value cache and experts [default: room for a quarter of the experts]
    #[arg(long, value_parser = bytes::parse)]
    budget: Option<u64>,
    /// Slots that misses are read into; a decoded token needs as many as it has experts in a layer
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    working: u32,
    /// Who computes the experts
    #[arg(long, default_value = "auto", value_parser = family::parser())]
    family: Family,
    /// Say on standard error how the memory is divided, and once a second how it goes
    #[arg(long)]
    stats: bool,
    /// Print one JSON object at the end instead of the text
    #[arg(long, conflicts_with = "figures")]
    json: bool,
    /// Print figures, generate a second time with every expert resident, and compare
    #[arg(long)]
    figures: bool,
    /// With --figures, the memory of the second run [default: enough for every expert]
    #[arg(long, value_name = "BUDGET", value_parser = bytes::parse, requires = "figures")]
    against: Option<u64>,
}

fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number >= 0.0 && number.is_finite());
    number.ok_or_else(|| "a temperature is a number from 0 on".into())
}

fn probability(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && *number <= 1.0);
    number.ok_or_else(|| "a probability here is above 0 and at most 1".into())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => common::report(&*error),
    }
}

/// Everything; whether what was promised was kept.
pub(crate) fn run(args: &Args) -> Result<bool, Failure> {
    mlx_rs::memory::set_cache_limit(MLX_CACHE_BYTES)?;
    let repository = Repository::open(&args.model)?;
    let before_bytes = MemoryInfo::measure().footprint_bytes.unwrap_or(0);
    let tokens = Tokens::open(&args.model)?;
    let tokenizer_bytes = MemoryInfo::measure().footprint_bytes.unwrap_or(0).saturating_sub(before_bytes);
    let request = request(args, &repository, &tokens)?;
    let dense = Dense::read(&repository)?;
    let source = &*repository.source;
    let fixed_bytes = dense.budget(0, request.positions(), args.working).fixed_bytes;
    let budget_bytes =
        args.budget.unwrap_or_else(|| fixed_bytes + budget::everything(source, args.working) / 4);
    let budget = |bytes| dense.budget(bytes, request.positions(), args.working);
    if args.stats {
        eprintln!("{}", ResidencyPlan::new(source, &budget(budget_bytes))?);
    }
    if args.figures {
        println!("{}", memory::slots(source));
        println!(
            "within {}, of which {} are not experts:\n",
            bytes::show(budget_bytes),
            bytes::show(fixed_bytes)
        );
    }
    let session =
        Session { args, repository: &repository, tokens: &tokens, dense: &dense, request: &request };
    let streamed = session.generate(budget(budget_bytes))?;
    // The peak is read before anything else takes memory: the resident run would hide it.
    let peak_bytes = MemoryInfo::measure().peak_footprint_bytes.unwrap_or(0);
    if args.json {
        println!("{}", report::json(&request, &streamed, budget_bytes, peak_bytes));
    }
    if !args.figures {
        return Ok(true);
    }
    let beside_bytes = memory::process_bytes() + MLX_CACHE_BYTES as u64 + tokenizer_bytes;
    let held = report::figures(&streamed, budget_bytes, peak_bytes, beside_bytes);
    let everything = fixed_bytes + budget::everything(source, args.working);
    let (against, what) = match args.against {
        Some(bytes) => (bytes, "once more"),
        None => (everything, "with every expert resident"),
    };
    println!("\n{what}, in {}:\n", bytes::show(against));
    match session.generate(budget(against)) {
        Ok(other) => Ok(report::comparison(&streamed, &other) && held),
        Err(reason) if memory::is_no_room(reason.downcast_ref()) => {
            println!("not compared: {reason}; `--against BUDGET` compares with a run that fits");
            Ok(held)
        }
        Err(error) => Err(error),
    }
}

/// The prompt's ids, and how many may follow.
fn request(args: &Args, repository: &Repository, tokens: &Tokens) -> Result<Request, Failure> {
    let prompt = if args.chat {
        // The template has written the special tokens itself.
        tokens.encode(&chat::prompt(&args.model, &args.prompt)?, false)?
    } else {
        tokens.encode(&args.prompt, true)?
    };
    let context = repository.config.context;
    if prompt.len() >= context {
        return Err(format!(
            "the prompt has {} tokens, but the model's context ends at {context}",
            prompt.len()
        )
        .into());
    }
    let max_tokens = args.max_tokens.min(context - prompt.len());
    Ok(Request { prompt, max_tokens, stop_ids: repository.config.stop_ids.clone() })
}

/// What all runs of the program have in common.
struct Session<'a> {
    args: &'a Args,
    repository: &'a Repository,
    tokens: &'a Tokens,
    dense: &'a Dense,
    request: &'a Request,
}

impl Session<'_> {
    /// Runs the request within `budget`, writing text as it comes.
    fn generate(&self, budget: Budget) -> Result<Outcome, Failure> {
        let args = self.args;
        let options = ExecutorOptions { family: args.family, ..ExecutorOptions::new(budget) };
        let timed = Arc::new(Timed::new(Arc::clone(&self.repository.source)));
        let source: Arc<dyn ExpertSource> = Arc::<Timed>::clone(&timed);
        let mut model = Model::open(self.dense.clone(), &source, &options)?;
        let mut sampler = Sampler::new(args.temperature, args.top_p, args.seed);
        let mut live = Live::new(args.stats, args.json, &timed);
        let mut text = self.tokens.stream(|piece| {
            if !args.json {
                print!("{piece}");
                io::stdout().flush()?;
            }
            Ok(())
        });
        let generated: Generated = generate(&mut model, self.request, &mut sampler, |id, model| {
            text(id)?;
            live.token(model.executor().manager());
            Ok(())
        })?;
        if !args.json {
            println!();
        }
        let outcome = Outcome {
            text: self.tokens.decode(&generated.ids)?,
            generated,
            telemetry: model.executor().manager().telemetry(),
            read_gbps: timed.gbps(),
        };
        live.end(&outcome);
        Ok(outcome)
    }
}
