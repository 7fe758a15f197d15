//! Text to ids and back, with the repository's own tokenizer.json.

use std::path::Path;

use tokenizers::Tokenizer;

use super::Failure;

/// A repository's tokenizer.
#[derive(Debug)]
pub struct Tokens(Tokenizer);

impl Tokens {
    pub fn open(directory: &Path) -> Result<Self, Failure> {
        let path = directory.join("tokenizer.json");
        if !path.exists() {
            return Err(format!("{} has no tokenizer.json", directory.display()).into());
        }
        let tokenizer = Tokenizer::from_file(&path);
        Ok(Self(tokenizer.map_err(|e| format!("{} is not a tokenizer: {e}", path.display()))?))
    }

    /// The ids of `text`; `special`: with what the tokenizer puts around a text, such as a first token.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, Failure> {
        Ok(self.0.encode(text, special)?.get_ids().to_vec())
    }

    pub fn decode(&self, ids: &[u32]) -> Result<String, Failure> {
        self.0.decode(ids, true)
    }

    /// Takes ids one by one and gives `write` text as soon as it is whole: an id may end within a character.
    pub fn stream<'a>(
        &'a self,
        mut write: impl FnMut(&str) -> Result<(), Failure> + 'a,
    ) -> impl FnMut(u32) -> Result<(), Failure> + 'a {
        let mut stream = self.0.decode_stream(true);
        move |id| match stream.step(id)? {
            Some(text) => write(&text),
            None => Ok(()),
        }
    }
}
