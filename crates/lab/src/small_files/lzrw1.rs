//! LZRW1 (Ross Williams, *An Extremely Fast Ziv-Lempel Data Compression Algorithm*, 1991).
//!
//! Owns: both directions, written from the algorithm's description. Sixteen items follow a word of
//! control bits. An item is a byte, or two bytes that copy 3 to 16 bytes from up to 4095 back. A
//! table of 4096 places remembers where three bytes last occurred. Four bytes in front say whether
//! the data is stored uncompressed, as in the author's own program. His table starts with whatever
//! is in memory; here it starts empty, so the same input gives the same output. Rules: input of any
//! length is accepted, damaged input gives nothing.

const FLAG: usize = 4;
const COPY: u8 = 1;
const ITEMS: usize = 16;
const MATCH_MIN: usize = 3;
const MATCH_MAX: usize = 16;
const OFFSET_MAX: usize = 4095;

fn place(bytes: &[u8]) -> usize {
    let key = ((u32::from(bytes[0]) << 4 ^ u32::from(bytes[1])) << 4) ^ u32::from(bytes[2]);
    (40_543u32.wrapping_mul(key) >> 4 & 0xfff) as usize
}

/// Place + 1 of three bytes by their hash; 0 for none.
pub type Table = [u32; 4096];

pub fn compress(input: &[u8], table: &mut Table, out: &mut Vec<u8>) {
    table.fill(0);
    out.clear();
    out.extend([0; FLAG]);
    let mut at = 0;
    while at < input.len() {
        let control_at = out.len();
        out.extend([0; 2]);
        let mut control = 0u16;
        for item in 0..ITEMS {
            if at == input.len() {
                break;
            }
            let rest = &input[at..];
            let mut length = 0;
            let mut offset = 0;
            if rest.len() >= MATCH_MIN {
                let known = &mut table[place(rest)];
                let seen = *known as usize;
                *known = at as u32 + 1;
                if seen != 0 && at + 1 - seen <= OFFSET_MAX {
                    offset = at + 1 - seen;
                    let most = rest.len().min(MATCH_MAX);
                    length = input[seen - 1..].iter().zip(&rest[..most]).take_while(|(a, b)| a == b).count();
                }
            }
            if length >= MATCH_MIN {
                control |= 1 << item;
                out.extend([(offset >> 4 & 0xf0) as u8 | (length - 1) as u8, offset as u8]);
                at += length;
            } else {
                out.push(rest[0]);
                at += 1;
            }
        }
        out[control_at..control_at + 2].copy_from_slice(&control.to_le_bytes());
        if out.len() > input.len() + FLAG {
            out.clear();
            out.extend([COPY, 0, 0, 0]);
            out.extend_from_slice(input);
            return;
        }
    }
}

/// Restores the input of `compress`, at most `most` bytes. Returns `None` if `bytes` are not its
/// output.
pub fn decompress(bytes: &[u8], most: usize, out: &mut Vec<u8>) -> Option<()> {
    out.clear();
    out.reserve(most + MATCH_MAX);
    let (flag, mut rest) = bytes.split_at_checked(FLAG)?;
    if flag[0] == COPY {
        out.extend_from_slice(rest.get(..rest.len().min(most))?);
        return Some(());
    }
    while !rest.is_empty() {
        let (control, after) = rest.split_first_chunk::<2>()?;
        let control = u16::from_le_bytes(*control);
        rest = after;
        for item in 0..ITEMS {
            if rest.is_empty() {
                break;
            }
            if control >> item & 1 == 0 {
                out.push(rest[0]);
                rest = &rest[1..];
            } else {
                let (pair, after) = rest.split_first_chunk::<2>()?;
                let offset = usize::from(pair[0] & 0xf0) << 4 | usize::from(pair[1]);
                let from = out.len().checked_sub(offset).filter(|_| offset > 0)?;
                let len = 1 + usize::from(pair[0] & 0xf);
                if len <= offset {
                    out.extend_from_within(from..from + len);
                } else {
                    // The copy reaches into itself.
                    (from..from + len).for_each(|at| out.push(out[at]));
                }
                rest = after;
            }
            if out.len() > most {
                return None;
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_sim::Random;

    #[test]
    fn everything_comes_back_and_grows_by_the_flag_at_most() {
        let (mut table, mut packed, mut back) = ([0; 4096], vec![], vec![]);
        for seed in 0..400 {
            let mut random = Random::new(seed);
            let len = random.below(1 << (seed % 18)) as usize;
            let mut input = random.bytes(len);
            if seed % 3 > 0 {
                input.iter_mut().for_each(|byte| *byte %= 1 + (seed % 5) as u8);
            }
            compress(&input, &mut table, &mut packed);
            assert!(packed.len() <= input.len() + FLAG, "seed {seed}");
            assert_eq!(decompress(&packed, input.len(), &mut back), Some(()), "seed {seed}");
            assert_eq!(back, input, "seed {seed}");
        }
        compress(&[b'a'; 4096], &mut table, &mut packed);
        // A byte, then copies of 16 bytes in groups of 16 items.
        assert!(packed.len() < 600, "{}", packed.len());
    }

    #[test]
    fn damaged_bytes_give_no_more_than_asked() {
        let mut random = Random::new(1);
        let mut back = vec![];
        for _ in 0..20_000 {
            let len = random.below(60) as usize;
            let mut bytes = random.bytes(len);
            if let Some(flag) = bytes.first_mut() {
                *flag = (*flag & 1) * COPY;
            }
            if decompress(&bytes, 100, &mut back).is_some() {
                assert!(back.len() <= 100);
            }
        }
    }
}
