//! LZO1X with one probe, as its fast level has it.
//!
//! Owns: compression, written from the description of the stream's format (the Linux kernel's
//! `Documentation/staging/lzo.rst`). A table of 16,384 places remembers where four bytes last
//! occurred; the further the last copy lies behind, the larger are the steps, so that data which
//! does not shrink costs little. Rules: any LZO1X decompressor reads the result; here it is
//! `lzokay`'s. Left out: the slower levels, which search more places.

const PLACES: usize = 1 << 14;
const MATCH_MIN: usize = 4;
/// Distances of the three kinds of copies.
const NEAR: usize = 0x800;
const MIDDLE: usize = 0x4000;
const FAR: usize = 0xbfff;
/// Longest copy of the kind that has a near distance.
const NEAR_LEN: usize = 8;
/// The end: a far copy of distance 0.
const END: [u8; 3] = [0x11, 0, 0];
/// The step grows by one with each so many bytes without a copy.
const STEP_SHIFT: usize = 5;

/// Place + 1 of four bytes by their hash; 0 for none.
pub type Table = [u32; PLACES];

fn four(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.first_chunk().map(|four| u32::from_le_bytes(*four))
}

fn place(four: u32) -> usize {
    (four.wrapping_mul(0x1824_429d) >> 18) as usize
}

/// Appends what exceeds a length's bits in the instruction.
fn put_long(out: &mut Vec<u8>, mut rest: usize) {
    while rest > 255 {
        out.push(0);
        rest -= 255;
    }
    out.push(rest as u8);
}

/// Appends literals. Up to three go with the copy before them, whose last but one byte has two bits
/// for it.
fn put_literals(out: &mut Vec<u8>, literals: &[u8]) {
    match literals.len() {
        0 => return,
        len if out.is_empty() && len <= 238 => out.push(17 + len as u8),
        len @ 1..=3 => {
            let at = out.len() - 2;
            out[at] |= len as u8;
        }
        len @ 4..=18 => out.push(len as u8 - 3),
        len => {
            out.push(0);
            put_long(out, len - 18);
        }
    }
    out.extend_from_slice(literals);
}

fn put_copy(out: &mut Vec<u8>, distance: usize, len: usize) {
    if len <= NEAR_LEN && distance <= NEAR {
        let distance = distance - 1;
        let len = if len <= 4 { 0x40 | (len - 3) << 5 } else { 0x80 | (len - 5) << 5 };
        out.extend([(len | (distance & 7) << 2) as u8, (distance >> 3) as u8]);
        return;
    }
    let (kind, bits, distance) = match distance {
        ..=MIDDLE => (0x20, 31, distance - 1),
        _ => (0x10 | (distance - MIDDLE) >> 11 & 8, 7, distance - MIDDLE),
    };
    match len - 2 {
        len if len <= bits => out.push((kind | len) as u8),
        len => {
            out.push(kind as u8);
            put_long(out, len - bits);
        }
    }
    out.extend([(distance << 2) as u8, (distance >> 6) as u8]);
}

/// Returns the number of equal bytes at two places.
fn common(input: &[u8], from: usize, at: usize) -> usize {
    let (a, b) = (&input[from..], &input[at..]);
    let words = a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count() * 8;
    words + a[words..].iter().zip(&b[words..]).take(8).take_while(|(a, b)| a == b).count()
}

pub fn compress(input: &[u8], table: &mut Table, out: &mut Vec<u8>) {
    table.fill(0);
    out.clear();
    let (mut at, mut done) = (0, 0);
    while let Some(bytes) = four(input, at) {
        let known = &mut table[place(bytes)];
        let seen = *known as usize;
        *known = at as u32 + 1;
        let is_copy = seen > 0 && at + 1 - seen <= FAR && four(input, seen - 1) == Some(bytes);
        // The first instruction is always of literals.
        if !is_copy || at == 0 {
            at += 1 + ((at - done) >> STEP_SHIFT);
            continue;
        }
        let len = MATCH_MIN + common(input, seen - 1 + MATCH_MIN, at + MATCH_MIN);
        put_literals(out, &input[done..at]);
        put_copy(out, at + 1 - seen, len);
        at += len;
        done = at;
    }
    put_literals(out, &input[done..]);
    out.extend(END);
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_sim::Random;

    #[test]
    fn another_decompressor_reads_everything() {
        let (mut table, mut packed) = (Box::new([0; PLACES]), vec![]);
        for seed in 0..600 {
            let mut random = Random::new(seed);
            let len = 1 + random.below(1 << (seed % 18)) as usize;
            let mut input = random.bytes(len);
            match seed % 4 {
                0 => {}
                // Long copies from far away.
                1 => (len / 2..len).for_each(|at| input[at] = input[at - len / 2]),
                _ => input.iter_mut().for_each(|byte| *byte %= 1 + (seed % 5) as u8),
            }
            compress(&input, &mut table, &mut packed);
            let mut back = vec![0; len];
            assert_eq!(lzokay::decompress::decompress(&packed, &mut back).unwrap(), len, "seed {seed}");
            assert_eq!(back, input, "seed {seed}");
        }
        compress(&[b'a'; 4096], &mut table, &mut packed);
        assert!(packed.len() < 40, "{}", packed.len());
    }
}
