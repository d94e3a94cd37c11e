//! Parity of rows: XOR for one lost unit, Reed-Solomon for more.
//!
//! A row is the block at one place of every data unit of a group. A unit that has no block there
//! counts as zeros. Owns: computing the parity of a row, and a missing data block from the rest of
//! its row. Left out: where blocks are.

/// XORs `from` into `into`.
pub(crate) fn add(into: &mut [u8], from: &[u8]) {
    // The compiler turns words of 8 bytes into vector instructions.
    let (head, tail) = into.as_chunks_mut::<8>();
    let (from_head, from_tail) = from.as_chunks::<8>();
    for (a, b) in head.iter_mut().zip(from_head) {
        *a = (u64::from_ne_bytes(*a) ^ u64::from_ne_bytes(*b)).to_ne_bytes();
    }
    for (a, b) in tail.iter_mut().zip(from_tail) {
        *a ^= b;
    }
}

/// Computes the `parity` blocks of a row; `None` where a unit has no block.
pub(crate) fn encode(row: &[Option<&[u8]>], parity: usize, block_bytes: usize) -> Vec<Vec<u8>> {
    if parity == 1 {
        let mut sum = vec![0; block_bytes];
        row.iter().flatten().for_each(|block| add(&mut sum, block));
        return vec![sum];
    }
    let zeros = vec![0; block_bytes];
    let row = row.iter().map(|block| block.unwrap_or(&zeros));
    reed_solomon_simd::encode(row.len(), parity, row).expect("counts and sizes are within the code's limits")
}

/// Computes the block of data unit `wanted` from the others of its row. `row`: the data that is
/// there (`None`: missing), with units that have no block as zeros. `parity`: the parity that is
/// there. Returns `None` if too much is missing.
pub(crate) fn decode(wanted: usize, row: &[Option<Vec<u8>>], parity: &[Option<Vec<u8>>]) -> Option<Vec<u8>> {
    if parity.len() == 1 {
        let mut sum = parity[0].clone()?;
        for (unit, block) in row.iter().enumerate().filter(|&(unit, _)| unit != wanted) {
            debug_assert_ne!(unit, wanted);
            add(&mut sum, block.as_ref()?);
        }
        return Some(sum);
    }
    let there = |blocks: &[Option<Vec<u8>>]| blocks.iter().flatten().count();
    if there(row) + there(parity) < row.len() {
        return None;
    }
    let numbered = |blocks: &[Option<Vec<u8>>]| -> Vec<(usize, Vec<u8>)> {
        blocks.iter().cloned().enumerate().filter_map(|(n, block)| Some((n, block?))).collect()
    };
    let mut restored = reed_solomon_simd::decode(row.len(), parity.len(), numbered(row), numbered(parity)).ok()?;
    restored.remove(&wanted)
}

/// Recovers a missing block from a row whose only parity block was not written completely. The
/// parity is a former version, or begins with a newer version and ends with a former one. `others`:
/// the other blocks, in the order in which parity came to cover them. `step`: the newer version
/// ends at a multiple of this many bytes. `fits` decides which version it is.
pub(crate) fn of_former(
    parity: &[u8],
    others: &[Option<Vec<u8>>],
    fits: impl Fn(&[u8]) -> bool,
    step: usize,
) -> Option<Vec<u8>> {
    let mut versions = vec![parity.to_vec()];
    for block in others.iter().map_while(Option::as_ref) {
        let mut version = versions[versions.len() - 1].clone();
        add(&mut version, block);
        versions.push(version);
    }
    let whole = versions.iter().rev().find(|version| fits(version)).cloned();
    whole.or_else(|| {
        let pairs = (0..versions.len()).flat_map(|newer| (0..newer).map(move |former| (newer, former)));
        pairs.into_iter().find_map(|(newer, former)| spliced(&versions[newer], &versions[former], &fits, step))
    })
}

/// Returns the first bytes of one block followed by the rest of another, if a cut fits.
fn spliced(first: &[u8], second: &[u8], fits: impl Fn(&[u8]) -> bool, step: usize) -> Option<Vec<u8>> {
    let mut spliced = second.to_vec();
    for (n, part) in first.chunks(step).enumerate() {
        let place = n * step..n * step + part.len();
        if spliced[place.clone()] == *part {
            continue;
        }
        spliced[place].copy_from_slice(part);
        if fits(&spliced) {
            return Some(spliced);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use shoal_format::Sums;

    use super::*;

    #[test]
    fn any_loss_within_the_parity_is_restored() {
        for (data, parity) in [(1, 1), (3, 1), (8, 1), (1, 2), (3, 2), (5, 3), (12, 4)] {
            let blocks: Vec<Vec<u8>> =
                (0..data).map(|n| (0..512).map(|i| (i * (n + 3) % 251) as u8).collect()).collect();
            // With several units, the last one has no block in this row.
            let has = |n: usize| n == 0 || n + 1 < data;
            let row: Vec<Option<&[u8]>> = (0..data).map(|n| has(n).then_some(&blocks[n][..])).collect();
            let code = encode(&row, parity, 512);
            assert_eq!(code.len(), parity);
            for lost in 0u32..1 << (data + parity) {
                if lost.count_ones() as usize > parity {
                    continue;
                }
                let there = |n: usize| lost >> n & 1 == 0;
                let zeros = vec![0; 512];
                let whole = |n: usize| if has(n) { blocks[n].clone() } else { zeros.clone() };
                let row: Vec<Option<Vec<u8>>> = (0..data).map(|n| there(n).then(|| whole(n))).collect();
                let left: Vec<Option<Vec<u8>>> =
                    (0..parity).map(|n| there(data + n).then(|| code[n].clone())).collect();
                for wanted in (0..data).filter(|&n| !there(n)) {
                    assert_eq!(decode(wanted, &row, &left), Some(whole(wanted)), "{data}+{parity}, lost {lost:b}");
                }
            }
        }
    }

    #[test]
    fn a_parity_written_in_part_still_gives_back_what_its_former_one_covered() {
        let mut random = shoal_sim::Random::new(1);
        let mut block = || (0..700).map(|_| random.below(256) as u8).collect::<Vec<u8>>();
        let (wanted, others) = (block(), [Some(block()), Some(block()), Some(block())]);
        let covers = |count: usize| {
            let mut sum = wanted.clone();
            others[..count].iter().flatten().for_each(|other| add(&mut sum, other));
            sum
        };
        let sum = Sums::Xxh3.of(&wanted);
        let fits = |found: &[u8]| Sums::Xxh3.of(found) == sum;
        for (newer, former) in (0..=3).flat_map(|newer| (0..=newer).map(move |former| (newer, former))) {
            for cut in [0, 1, 511, 512, 600, 699] {
                let torn = [&covers(newer)[..cut], &covers(former)[cut..]].concat();
                let found = |others: &[Option<Vec<u8>>], step| of_former(&torn, others, fits, step).is_some();
                assert!(found(&others, 1), "{newer} over {former}, cut at {cut}");
                let is_whole = newer == former || cut == 0;
                assert_eq!(found(&others, 512), is_whole || cut == 512, "{newer} over {former}, cut at {cut}");
                // A block that is not there cannot be subtracted.
                let covered = if cut == 0 { former } else { newer };
                assert_eq!(found(&[others[0].clone(), None], 1), covered <= 1, "{newer} over {former}, cut at {cut}");
            }
        }
        assert_eq!(of_former(&block(), &others, fits, 1), None);
    }

    #[test]
    fn more_loss_than_parity_is_no_answer() {
        let block = Some(vec![1; 512]);
        assert_eq!(decode(0, &[None, None, block.clone()], std::slice::from_ref(&block)), None);
        assert_eq!(decode(0, &[None, None, None], &[block.clone(), block]), None);
        assert_eq!(decode(0, &[None, Some(vec![1; 512])], &[None]), None);
    }
}
