//! Single damaged pages of an image, and their replacement from the other image.
//!
//! Rules: a page of the other image whose sum is that of the damaged page is the same page. If the
//! other image replays to the same end of the log, its replayed page replaces the damaged one. Any
//! other older page is used only if nothing is left of the newer one, and files with bytes in it
//! are named.

use std::collections::BTreeMap;

use shoal_format::superblock::{AnchorRecord, Superblock};
use shoal_format::{Offset, PAGE};

use crate::region::{Base, Region};
use crate::report::{FindingKind, Report};
use crate::{CheckError, open};

/// The contents of a page that is not known to be right.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// The bytes found, with a wrong sum.
    Found,
    /// The bytes of the older image.
    Older,
}

/// Pages whose contents are not known to be right.
#[derive(Default)]
pub(super) struct BadPages(BTreeMap<u64, Content>);

/// A bad page as named in messages.
pub(super) struct BadPage(u64, Content);

impl std::fmt::Display for BadPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.1 {
            Content::Found => write!(f, "page {} of the image, whose sum is wrong", self.0),
            Content::Older => write!(f, "page {}, which is missing and taken from the older image", self.0),
        }
    }
}

impl BadPages {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first bad page in `[at, at + len)`.
    pub fn first_in(&self, at: u64, len: u64) -> Option<BadPage> {
        if self.0.is_empty() || len == 0 {
            return None;
        }
        self.0.range(at / PAGE..=(at + len - 1) / PAGE).next().map(|(&page, &content)| BadPage(page, content))
    }

    /// Describes the number of bad pages.
    pub fn sentence(&self) -> Vec<String> {
        let count = |wanted| self.0.values().filter(|&&content| content == wanted).count();
        let found = count(Content::Found);
        let older = count(Content::Older);
        let mut sentences = Vec::new();
        if found > 0 {
            sentences
                .push(format!("{found} pages of the image have wrong checksums; files with data in them are named"));
        }
        if older > 0 {
            sentences.push(format!(
                "{older} missing pages are taken from the older image; files with data in them are named"
            ));
        }
        sentences
    }
}

/// The treatment of an image's damaged pages before its log is replayed.
pub(super) struct Mended {
    /// Pages from the other image.
    pub pages: Vec<(u64, Vec<u8>)>,
    pub bad: BadPages,
}

/// Returns the bytes that the image has, if its end is missing.
pub(super) fn cut(base: &Base<'_>, superblock: &Superblock, anchor: &AnchorRecord) -> Result<Option<u64>, CheckError> {
    let Base::Image(image) = base else { return Ok(None) };
    let pages = anchor.used_bytes.get().min(superblock.region_bytes).div_ceil(PAGE);
    // The sum of the last page that was written precedes the stale map.
    let whole = superblock.region_bytes.next_multiple_of(PAGE) + if pages > 0 { 4 } else { 0 };
    Ok(image.stored_bytes()?.filter(|&stored| stored < whole))
}

fn sum(base: &Base<'_>, superblock: &Superblock, page: u64) -> Result<u32, CheckError> {
    let mut sum = [0; 4];
    base.read(superblock.region_bytes.next_multiple_of(PAGE) + page * 4, &mut sum)?;
    Ok(u32::from_le_bytes(sum))
}

/// Finds the damaged pages of the image `base` and their replacements in `other`.
pub(super) fn mend(
    base: Base<'_>,
    cut: Option<u64>,
    superblock: &Superblock,
    anchor: &AnchorRecord,
    other: Option<Base<'_>>,
) -> Result<Mended, CheckError> {
    let mut mended = Mended { pages: Vec::new(), bad: BadPages::default() };
    if !matches!(base, Base::Image(_)) {
        return Ok(mended);
    }
    let used = anchor.used_bytes.get().min(superblock.region_bytes);
    // A truncated image has no sums.
    let wrong: Vec<u64> = match cut {
        Some(bytes) => (bytes / PAGE..used.div_ceil(PAGE)).collect(),
        None => {
            let mut report = Report::default();
            open::verify_sums(&base, superblock, used, &mut report, &mut |_| {})?;
            let sums = report.errors.iter().filter(|finding| finding.kind == FindingKind::PageSum);
            sums.filter_map(|finding| finding.offset.map(|at| at / PAGE)).collect()
        }
    };
    let mut bytes = vec![0; PAGE as usize];
    for page in wrong.into_iter().filter(|&page| page != 1) {
        base.read(page * PAGE, &mut bytes)?;
        let gone = cut.is_some() || bytes.iter().all(|&byte| byte == 0);
        let mut content = Content::Found;
        if let Some(other) = &other {
            other.read(page * PAGE, &mut bytes)?;
            let found = superblock.sums().of_page(page, &bytes);
            if cut.is_none() && found == sum(&base, superblock, page)? {
                mended.pages.push((page, bytes.clone()));
                continue;
            }
            if gone && found == sum(other, superblock, page)? {
                mended.pages.push((page, bytes.clone()));
                content = Content::Older;
            }
        }
        mended.bad.0.insert(page, content);
    }
    Ok(mended)
}

/// Replaces pages that are still bad with those of another region that was replayed to the same
/// end. Takes only pages whose sums are right in that region's image.
pub(super) fn take_replayed(
    region: &mut Region<'_>,
    other: &Region<'_>,
    image: Base<'_>,
    superblock: &Superblock,
    bad: &mut BadPages,
) -> Result<(), CheckError> {
    let mut bytes = vec![0; PAGE as usize];
    let mut left = BTreeMap::new();
    for (page, content) in std::mem::take(&mut bad.0) {
        image.read(page * PAGE, &mut bytes)?;
        let expected = sum(&image, superblock, page)?;
        let blank = expected == 0 && bytes.iter().all(|&byte| byte == 0);
        if blank || superblock.sums().of_page(page, &bytes) == expected {
            other.peek(Offset::new(page * PAGE), &mut bytes)?;
            region.write(Offset::new(page * PAGE), &bytes)?;
        } else {
            left.insert(page, content);
        }
    }
    bad.0 = left;
    Ok(())
}
