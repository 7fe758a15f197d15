//! A conversation as the model wants it written: the repository's own Jinja template.

use std::{fs, path::Path};

use minijinja::{Environment, Error, ErrorKind, Value as Jinja, context, syntax::SyntaxConfig};
use serde_json::Value;

use super::{Failure, repository::read_json};

/// `message` as the user's turn, followed by what opens the answer.
pub fn prompt(directory: &Path, message: &str) -> Result<String, Failure> {
    let template = template(directory)?;
    let tokens = read_json(&directory.join("tokenizer_config.json")).unwrap_or_default();
    let token = |key: &str| match &tokens[key] {
        Value::Object(token) => token.get("content").and_then(Value::as_str).unwrap_or_default().to_owned(),
        token => token.as_str().unwrap_or_default().to_owned(),
    };
    let mut environment = Environment::new();
    // Lines that hold only a tag leave nothing behind, as transformers has it.
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    // Templates call Python's string methods.
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |reason: String| -> Result<Jinja, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, reason))
    });
    environment.add_function("strftime_now", |_: String| today());
    environment.add_template("chat", &template)?;
    let text = environment.get_template("chat")?.render(context! {
        messages => [context! { role => "user", content => message }],
        add_generation_prompt => true,
        bos_token => token("bos_token"),
        eos_token => token("eos_token"),
    });
    text.map_err(|e| format!("the chat template of {} fails: {e}", directory.display()).into())
}

/// `chat_template.jinja`, or `chat_template` in tokenizer_config.json: one, or several by name.
fn template(directory: &Path) -> Result<String, Failure> {
    let own = directory.join("chat_template.jinja");
    if own.exists() {
        return Ok(fs::read_to_string(own)?);
    }
    let all = read_json(&directory.join("tokenizer_config.json"))?;
    let named = |all: &Vec<Value>| {
        let default = all.iter().find(|each| each["name"] == "default");
        default.and_then(|each| each["template"].as_str()).map(str::to_owned)
    };
    let found = match &all["chat_template"] {
        Value::String(template) => Some(template.clone()),
        Value::Array(all) => named(all),
        _ => None,
    };
    found.ok_or_else(|| format!("{} has no chat template; leave out --chat", directory.display()).into())
}

/// The date (UTC) as 2025-12-31, whatever format was asked for: days since 1970 in the Gregorian calendar.
fn today() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // Years that begin in March, in eras of 400 years.
    let days = since.as_secs() / 86400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + u64::from(month < 3))
}
