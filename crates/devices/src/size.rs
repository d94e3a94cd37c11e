//! Sizes in bytes, as people write and read them.
//!
//! Users write digits and one of K, M, G, T (powers of 1024; `KiB` and the like mean the same), or
//! no letter for bytes. They read the largest unit that keeps the number at least 1, with one digit
//! after the point.

use std::str::FromStr;

/// A number of bytes on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [char; 4] = ['K', 'M', 'G', 'T'];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || format!("`{text}` is not a size; write a number with K, M, G or T, such as 512K or 4G");
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
        let unit = text[digits..].to_ascii_uppercase();
        let unit = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
        let shift = match (unit.chars().next(), unit.len()) {
            (None, _) => 0,
            (Some(letter), 1) => 10 * (1 + UNITS.iter().position(|u| *u == letter).ok_or_else(wrong)?),
            _ => return Err(wrong()),
        };
        number.checked_mul(1 << shift).map(Size).ok_or_else(|| format!("`{text}` is more than a store can hold"))
    }
}

/// `bytes` for people: `1.5 GiB`, `640 KiB`, `17 B`.
pub fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = None;
    for letter in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = Some(letter);
    }
    match unit {
        None => format!("{bytes} B"),
        Some(letter) if value >= 100.0 => format!("{value:.0} {letter}iB"),
        Some(letter) => format!("{} {letter}iB", format!("{value:.1}").trim_end_matches(".0")),
    }
}

/// `bytes` as they can be given on the command line, exactly: `12352K`.
pub fn exact(bytes: u64) -> String {
    let fits = |unit: &usize| bytes > 0 && bytes.is_multiple_of(1 << (10 * (unit + 1)));
    match (0..UNITS.len()).rev().find(fits) {
        Some(unit) => format!("{}{}", bytes >> (10 * (unit + 1)), UNITS[unit]),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, bytes) in
            [("0", 0), ("17", 17), ("512K", 512 << 10), ("4g", 4 << 30), ("1MiB", 1 << 20), ("2TB", 2 << 40), ("9B", 9)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "K", "-1", "1.5G", "1X", "1KK", "4 G", "99999999999T", "ß", "1İ"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn exact_sizes_are_read_as_what_they_were() {
        for (bytes, text) in [(0, "0"), (1023, "1023"), (12352 << 10, "12352K"), (1 << 20, "1M"), (3 << 40, "3T")] {
            assert_eq!((exact(bytes).as_str(), text.parse()), (text, Ok(Size(bytes))));
        }
    }

    #[test]
    fn people_read_one_digit_behind_the_point() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1024), "1 KiB");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human((2 << 30) - 1), "2 GiB");
        assert_eq!(human(640 << 20), "640 MiB");
        assert_eq!(human(u64::MAX), "16777216 TiB");
    }
}
