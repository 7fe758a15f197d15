//! Whole models. If this fails, an engine that adopts the library writes other text than the model would, or text that
//! changes with the budget.
//!
//! The references are `models/` (a small trained model, its greedy continuations and its routes, computed with f32
//! activations) and `tests/fixtures/whole-*` (random models of each architecture, with what mlx-lm makes of them).
#![cfg(feature = "mlx")]

#[path = "../examples/generate/main.rs"]
#[allow(dead_code, reason = "the example's own main is not run")]
mod program;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
};

use clap::Parser;
use program::{
    Args, common,
    common::budget::everything,
    engine::{
        cache::Cache,
        generate::{Request, generate},
        model::{Dense, Model},
        repository::Repository,
        rows::Rows,
        sample::{Sampler, best},
        tokens::Tokens,
    },
};
use serde_json::Value;
use streamed_experts::{Budget, ExecutorOptions, Family, ResidencyPlan, Routes, TensorIndex};

const FAMILIES: [Family; 2] = [Family::Stock, Family::Host];

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn tiny() -> PathBuf {
    root("models/tiny-moe-4bit")
}

/// How much of the experts a budget holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Room {
    /// The least that the plan accepts.
    Floor,
    Half,
    Everything,
}

fn model(directory: &Path, family: Family, room: Room, working: u32) -> Model {
    let repository = Repository::open(directory).unwrap();
    let dense = Dense::read(&repository).unwrap();
    let all = everything(&*repository.source, working);
    let fixed = Budget { fixed_bytes: dense.bytes(), working_slots: working, ..Budget::new(0) };
    let bytes = match room {
        Room::Everything => dense.bytes() + all,
        Room::Half => dense.bytes() + all / 2,
        Room::Floor => match ResidencyPlan::new(&*repository.source, &fixed).unwrap_err() {
            streamed_experts::PlanError::TooSmall { needed_bytes, .. } => needed_bytes,
            other => panic!("{other}"),
        },
    };
    let options = ExecutorOptions { family, ..ExecutorOptions::new(Budget { budget_bytes: bytes, ..fixed }) };
    Model::open(dense, &repository.source, &options).unwrap()
}

/// A prompt of the small model, with its continuation.
struct Reference {
    prompt: String,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    text: String,
    margins: Vec<f64>,
}

fn references() -> Vec<Reference> {
    let all: Value = serde_json::from_str(&fs::read_to_string(root("models/prompts.json")).unwrap()).unwrap();
    let numbers = |value: &Value| value.as_array().unwrap().clone();
    let ids = |value: &Value| numbers(value).iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let reference = |each: &Value| Reference {
        prompt: each["prompt"].as_str().unwrap().into(),
        prompt_ids: ids(&each["prompt_ids"]),
        ids: ids(&each["ids_f32"]),
        text: each["text_f32"].as_str().unwrap().into(),
        margins: numbers(&each["margins_f32"]).iter().map(|margin| margin.as_f64().unwrap()).collect(),
    };
    all["prompts"].as_array().unwrap().iter().map(reference).collect()
}

fn greedy(model: &mut Model, prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let request = Request { prompt: prompt.into(), max_tokens, stop_ids: Vec::new() };
    generate(model, &request, &mut Sampler::greedy(), |_, _| Ok(())).unwrap().ids
}

#[test]
fn the_small_model_continues_every_prompt_as_the_reference_does() {
    let tokens = Tokens::open(&tiny()).unwrap();
    for family in FAMILIES {
        let mut model = model(&tiny(), family, Room::Half, 16);
        for reference in references() {
            assert_eq!(tokens.encode(&reference.prompt, true).unwrap(), reference.prompt_ids);
            let ids = greedy(&mut model, &reference.prompt_ids, reference.ids.len());
            let parting = ids.iter().zip(&reference.ids).position(|(ours, theirs)| ours != theirs);
            match parting {
                None => {
                    assert_eq!(ids, reference.ids, "{family:?}");
                    let mut text = String::new();
                    let mut write = tokens.stream(|piece| {
                        text.push_str(piece);
                        Ok(())
                    });
                    ids.iter().for_each(|&id| write(id).unwrap());
                    drop(write);
                    assert_eq!(text, reference.text);
                }
                Some(step) => {
                    let margin = reference.margins[step];
                    assert!(margin < 0.01, "{family:?} parts from {:?} at step {step}", reference.prompt);
                    println!("{family:?} parts from {:?} at step {step}, margin {margin}", reference.prompt);
                }
            }
        }
    }
}

#[test]
fn text_does_not_depend_on_the_budget_or_the_family() {
    let reference = &references()[1];
    for family in FAMILIES {
        for (room, working) in [(Room::Floor, 1), (Room::Floor, 4), (Room::Half, 16), (Room::Everything, 64)]
        {
            let mut model = model(&tiny(), family, room, working);
            let ids = greedy(&mut model, &reference.prompt_ids, 16);
            assert_eq!(ids, reference.ids[..16], "{family:?} {room:?}");
        }
    }
}

/// Experts and weights that differ from the trace's: (choices that differ, largest difference of a weight).
fn differences(routes: &Routes, token: usize, trace: &Value, layer: usize) -> (usize, f32) {
    let list = |key: &str| trace[key][layer].as_array().unwrap().clone();
    let theirs: HashMap<u32, f32> = list("layers")
        .iter()
        .zip(&list("weights"))
        .map(|(expert, weight)| (expert.as_u64().unwrap() as u32, weight.as_f64().unwrap() as f32))
        .collect();
    let least = theirs.values().copied().fold(f32::INFINITY, f32::min);
    let (mut other, mut largest) = (0, 0f32);
    for (expert, weight) in routes.row(token) {
        // An expert that the trace does not have must be a near-tie with the trace's last.
        other += usize::from(!theirs.contains_key(&expert.0));
        largest = largest.max((weight - theirs.get(&expert.0).unwrap_or(&least)).abs());
    }
    (other, largest)
}

#[test]
fn routes_are_those_of_the_reference() {
    let text = fs::read_to_string(root("models/tiny-moe-trace.jsonl")).unwrap();
    let trace: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut model = model(&tiny(), Family::Host, Room::Half, 64);
    let (mut choices, mut other) = (0, 0);
    for window in trace.chunk_by(|_, next| next["ctx"] != 0) {
        let ids: Vec<u32> = window.iter().map(|token| token["token"].as_u64().unwrap() as u32).collect();
        let mut cache = Cache::new(model.config(), ids.len()).unwrap();
        model.routes = Some(Vec::new());
        // Two chunks, so that the second meets a cache that is not empty.
        let (first, second) = ids.split_at(ids.len() / 3);
        model.fill(first, &mut cache).unwrap();
        model.fill(second, &mut cache).unwrap();
        let routes = model.routes.take().unwrap();
        let (of_first, of_second) = routes.split_at(routes.len() / 2);
        for (number, token) in window.iter().enumerate() {
            let (routes, row) = match number.checked_sub(first.len()) {
                None => (of_first, number),
                Some(row) => (of_second, row),
            };
            for (layer, (_, routes)) in routes.iter().enumerate() {
                let (differ, weight) = differences(routes, row, token, layer);
                assert!(weight < 1e-3, "token {number} layer {layer}: a weight differs by {weight}");
                choices += routes.row(row).count();
                other += differ;
            }
        }
    }
    println!("{other} of {choices} choices differ, each a near-tie");
    assert_eq!(choices, 192 * 6 * 4);
    assert!(other * 1000 < choices, "{other} of {choices} choices differ");
}

/// What mlx-lm computed on a fixture.
struct Answers {
    tokens: Vec<u32>,
    /// `[tokens, vocabulary]`
    logits: Vec<f32>,
    greedy: Vec<u32>,
    margins: Vec<f32>,
    long: Vec<u32>,
    long_logits: Vec<f32>,
}

fn answers(directory: &Path) -> Answers {
    let index = TensorIndex::open_file(directory.join("whole.safetensors")).unwrap();
    let words = |name: &str| -> Vec<[u8; 4]> {
        index.read(name).unwrap().chunks_exact(4).map(|word| word.try_into().unwrap()).collect()
    };
    let ids = |name| words(name).into_iter().map(u32::from_le_bytes).collect();
    let values = |name| words(name).into_iter().map(f32::from_le_bytes).collect();
    Answers {
        tokens: ids("tokens"),
        logits: values("logits"),
        greedy: ids("greedy"),
        margins: values("margins"),
        long: ids("long"),
        long_logits: values("long_logits"),
    }
}

fn relative_error(ours: &[f32], theirs: &[f32]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let square = |sum: f64, value: f64| sum + value * value;
    let error = ours.iter().zip(theirs).map(|(&a, &b)| f64::from(a) - f64::from(b)).fold(0.0, square);
    (error / theirs.iter().map(|&value| f64::from(value)).fold(0.0, square)).sqrt()
}

#[test]
fn every_architecture_gives_the_logits_and_tokens_of_mlx_lm() {
    for architecture in ["qwen3_moe", "olmoe", "glm4_moe", "mixtral", "gpt_oss", "deepseek_v3"] {
        let directory = root("tests/fixtures").join(format!("whole-{architecture}"));
        let answers = answers(&directory);
        for family in FAMILIES {
            let mut model = model(&directory, family, Room::Floor, 2);
            let mut cache = Cache::new(model.config(), answers.long.len()).unwrap();
            let logits = model.logits(&answers.tokens, &mut cache).unwrap().concat();
            let error = relative_error(&logits, &answers.logits);
            assert!(error <= 1e-4, "{architecture} {family:?}: {error:.1e}");
            // Over a window and over chunks: a cache that was cut back, two chunks of many, and one token.
            cache.truncate(0);
            let (chunks, last) = answers.long.split_at(answers.long.len() - 1);
            chunks.chunks(30).for_each(|chunk| model.fill(chunk, &mut cache).unwrap());
            let logits = model.last_logits(last, &mut cache).unwrap();
            let long = relative_error(&logits, &answers.long_logits);
            assert!(long <= 1e-4, "{architecture} {family:?}, long: {long:.1e}");
            let ids = greedy(&mut model, &answers.tokens, answers.greedy.len());
            assert_eq!(ids, answers.greedy, "{architecture} {family:?}");
            let margin = answers.margins.iter().copied().fold(f32::INFINITY, f32::min);
            println!("{architecture} {family:?}: {error:.1e}, long {long:.1e}, smallest margin {margin}");
        }
    }
}

#[test]
fn four_tokens_verified_at_once_have_the_bits_of_four_single_forwards() {
    let bits = |logits: &[f32]| logits.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let reference = &references()[0];
    let draft = &reference.ids[..4];
    for directory in [tiny(), root("tests/fixtures/whole-glm4_moe"), root("tests/fixtures/whole-gpt_oss")] {
        let mut model = model(&directory, Family::Host, Room::Floor, 4);
        model.rows = Rows::OneByOne;
        let vocabulary = if directory == tiny() { u32::MAX } else { 96 };
        let fit = |ids: &[u32]| ids.iter().map(|id| id % vocabulary).collect::<Vec<_>>();
        let (prompt, draft) = (fit(&reference.prompt_ids), fit(draft));
        let mut cache = Cache::new(model.config(), prompt.len() + draft.len()).unwrap();
        model.fill(&prompt, &mut cache).unwrap();
        let at_once: Vec<_> = model.logits(&draft, &mut cache).unwrap().iter().map(|row| bits(row)).collect();
        cache.truncate(prompt.len() as i32);
        let singly: Vec<_> =
            draft.iter().map(|&id| bits(&model.last_logits(&[id], &mut cache).unwrap())).collect();
        assert!(at_once == singly, "{}", directory.display());
        // What the dense part does to the bits when it takes the rows together depends on MLX alone; it is no more
        // than rounding.
        cache.truncate(prompt.len() as i32);
        model.rows = Rows::Together;
        let together = model.logits(&draft, &mut cache).unwrap();
        let same = together.iter().zip(&singly).filter(|(row, single)| bits(row) == **single).count();
        println!("{}: {same} of 4 rows keep their bits with the dense part together", directory.display());
        let single: Vec<f32> = singly.concat().into_iter().map(f32::from_bits).collect();
        assert!(relative_error(&together.concat(), &single) < 1e-5);
    }
}

#[test]
fn two_requests_at_once_share_one_bank_and_write_what_they_write_alone() {
    let references = references();
    for family in FAMILIES {
        let mut first = model(&tiny(), family, Room::Floor, 6);
        let mut second = first.share();
        let executor = first.executor().share();
        thread::scope(|scope| {
            for (model, reference) in [(&mut first, &references[0]), (&mut second, &references[1])] {
                scope.spawn(move || {
                    let ids = greedy(model, &reference.prompt_ids, 24);
                    assert_eq!(ids, reference.ids[..24], "{family:?} {:?}", reference.prompt);
                });
            }
        });
        executor.manager().check_invariants();
        let telemetry = executor.manager().telemetry();
        // One forward of the prompt and 23 of a token each, in 6 layers, by two requests.
        assert_eq!(telemetry.forward_time.count, 2 * 24 * 6);
        assert_eq!(telemetry.slots.leases, 0);
    }
}

#[test]
fn sampling_follows_its_seed_and_keeps_to_the_nucleus() {
    let logits = [1.0, 3.0, 2.0, 3.0, f32::NEG_INFINITY];
    assert_eq!(best(&logits), 1);
    let draw = |temperature, top_p, seed| {
        let mut sampler = Sampler::new(temperature, top_p, seed);
        (0..200).map(|_| sampler.choose(&logits)).collect::<Vec<_>>()
    };
    assert_eq!(draw(0.8, 1.0, 7), draw(0.8, 1.0, 7));
    assert_ne!(draw(0.8, 1.0, 7), draw(0.8, 1.0, 8));
    assert!((0..4).all(|id| draw(1.0, 1.0, 1).contains(&id)) && !draw(1.0, 1.0, 1).contains(&4));
    assert!(draw(1.0, 0.5, 1).iter().all(|id| [1, 3].contains(id)));
    assert!(draw(1.0, 1e-9, 1).iter().all(|&id| id == 1));
}

#[test]
fn a_chat_template_is_rendered_as_the_repository_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let config = serde_json::json!({
        "bos_token": { "content": "<s>" },
        "chat_template": "{%- set seen = namespace(turns=0) %}\n{{ bos_token }}\
            {% macro turn(name) %}<{{ name }}>{% endmacro %}\n\
            {% for message in messages[::-1] %}\n\
            {%- set seen.turns = seen.turns + 1 %}\n\
            {% if message.content is string and not message.content.startswith('<tool>') %}\n\
            {{ turn(message.role.upper()) + message['content'].split('</think>')[-1].lstrip(' \\n') }}\n\
            {% endif %}\n{% endfor %}\n\
            {% if tools %}{{ tools | tojson }}{% endif %}\n\
            {% if add_generation_prompt %}<ASSISTANT {{ seen.turns }}>{% endif %}",
    });
    fs::write(directory.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let prompt =
        program::engine::chat::prompt(directory.path(), "<think>so</think>\n Who goes there?").unwrap();
    assert_eq!(prompt, "<s><USER>Who goes there?\n<ASSISTANT 1>");
}

/// Runs the program on bad input and gives its one sentence.
fn sentence(arguments: &[&str]) -> String {
    let arguments = ["generate"].iter().chain(arguments);
    let error = program::run(&Args::try_parse_from(arguments).unwrap()).unwrap_err();
    assert_eq!(common::report(&*error), ExitCode::from(2));
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn bad_input_is_one_clear_sentence_and_exit_code_2() {
    let tiny = tiny();
    let tiny = tiny.to_str().unwrap();
    let copy = tempfile::tempdir().unwrap();
    let made = copy.path().to_str().unwrap();
    let ask =
        |directory, more: &[&str]| sentence(&[&["--model", directory, "--prompt", "And"], more].concat());

    let without_tokenizer = root("tests/fixtures/whole-qwen3_moe");
    let message = ask(without_tokenizer.to_str().unwrap(), &[]);
    assert!(message.ends_with("whole-qwen3_moe has no tokenizer.json"), "{message}");

    let message = ask(made, &[]);
    assert!(message.starts_with("cannot read ") && message.contains("config.json"), "{message}");

    fs::write(copy.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    assert_eq!(
        ask(made, &[]),
        "`llama` is not an architecture that this example runs; it runs qwen3_moe, olmoe, glm4_moe, mixtral, gpt_oss, \
         deepseek_v3"
    );

    for file in fs::read_dir(root("tests/fixtures/qwen3_moe-sharded")).unwrap() {
        let file = file.unwrap();
        if !file.file_name().to_str().unwrap().starts_with("model-00002") {
            fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
    }
    let message = ask(made, &[]);
    assert!(message.contains("model-00002-of-00002.safetensors"), "{message}");

    let long = "And it came to pass. ".repeat(400);
    let message = sentence(&["--model", tiny, "--prompt", &long]);
    assert!(message.ends_with("tokens, but the model's context ends at 1024"), "{message}");

    let message = ask(tiny, &["--budget", "4MB"]);
    assert!(message.starts_with("a budget of 4000000 B is too small by "), "{message}");
}
