//! Contents of files: words of a generated text, and incompressible bytes for some files.
//!
//! Owns: [`Contents`]. The text has 1,024 words of two to four syllables, few of them frequent and
//! most rare. Part of it repeats phrases of earlier words, as prose and source code do. A single
//! file of it compresses about 2:1 to 3:1, like the small files of real trees. One file in 16
//! consists of random bytes, like images and archives. Rules: all contents are slices of one
//! buffer, made before any timing starts; the same seed gives the same bytes. All files share the
//! vocabulary, so these contents say nothing about dictionaries shared between files.

use shoal_sim::Random;

/// Least bytes of text. Files begin anywhere in it.
const TEXT_BYTES_MIN: usize = 1 << 20;
const WORDS: usize = 1024;
const LINE_BYTES: usize = 76;
/// One choice in this many repeats a phrase of 2 to 5 words from the last [`PHRASES_WORDS`] words.
const PHRASE_ONE_OF: u64 = 4;
const PHRASES_WORDS: usize = 100;
/// One word in this many ends a sentence.
const SENTENCE_ONE_OF: u64 = 10;
/// One file in this many consists of random bytes.
pub const RANDOM_ONE_OF: u64 = 16;

const ONSETS: [&str; 16] = ["b", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "st", "tr", "pl", "v"];
const VOWELS: [&str; 8] = ["a", "e", "i", "o", "u", "ea", "io", "ou"];
const CODAS: [&str; 8] = ["", "", "n", "r", "s", "t", "l", "ng"];

/// The bytes from which files are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    bytes: Vec<u8>,
    /// Length of the text; the random bytes begin after it.
    text_bytes: usize,
    len_max: usize,
}

fn word(random: &mut Random) -> String {
    let syllables = 2 + random.index(3);
    (0..syllables)
        .flat_map(|_| {
            [ONSETS[random.index(ONSETS.len())], VOWELS[random.index(VOWELS.len())], CODAS[random.index(CODAS.len())]]
        })
        .collect()
}

/// Returns the lowest of three draws, so that low indices are frequent.
fn skewed(random: &mut Random, len: usize) -> usize {
    (0..3).map(|_| random.index(len)).min().unwrap_or(0)
}

fn text(random: &mut Random, bytes: usize) -> Vec<u8> {
    let words: Vec<String> = (0..WORDS).map(|_| word(random)).collect();
    let (mut said, mut text, mut line): (Vec<usize>, Vec<u8>, usize) = (vec![], vec![], 0);
    while text.len() < bytes {
        let start = said.len();
        if start > PHRASES_WORDS && random.below(PHRASE_ONE_OF) == 0 {
            let from = start - PHRASES_WORDS + random.index(PHRASES_WORDS - 5);
            said.extend_from_within(from..from + 2 + random.index(4));
        } else {
            said.push(skewed(random, WORDS));
        }
        for word in &said[start..] {
            text.extend_from_slice(words[*word].as_bytes());
            if random.below(SENTENCE_ONE_OF) == 0 {
                text.push(b'.');
            }
            let is_full = text.len() - line >= LINE_BYTES;
            text.push(if is_full { b'\n' } else { b' ' });
            line = if is_full { text.len() } else { line };
        }
    }
    text.truncate(bytes);
    text
}

impl Contents {
    /// Generates contents for files of at most `len_max` bytes.
    pub fn generate(seed: u64, len_max: usize) -> Contents {
        let mut random = Random::new(seed);
        let text_bytes = TEXT_BYTES_MIN.max(2 * len_max);
        let mut bytes = text(&mut random, text_bytes);
        bytes.extend(random.bytes(text_bytes));
        Contents { bytes, text_bytes, len_max }
    }

    /// Draws the offset of a file's first byte: in the text or, for one file in [`RANDOM_ONE_OF`],
    /// in the random bytes.
    pub fn draw(&self, random: &mut Random) -> usize {
        let is_random = random.below(RANDOM_ONE_OF) == 0;
        self.draw_like(if is_random { self.text_bytes } else { 0 }, random)
    }

    /// Draws another offset of the same kind.
    pub fn draw_like(&self, from: usize, random: &mut Random) -> usize {
        let start = if from < self.text_bytes { 0 } else { self.text_bytes };
        start + random.index(self.text_bytes - self.len_max)
    }

    pub fn slice(&self, from: usize, len: usize) -> &[u8] {
        &self.bytes[from..from + len]
    }
}
