//! Link counts, the path up from every directory, and the paths of findings.
//!
//! Rules: all directories have been walked before. Marks ensure that each path up is followed once,
//! so the stage is linear.
//! Left out: inodes whose record does not decode, because their counts are unknown.

use shoal_format::Offset;
use shoal_format::dir::{ENTRY_HEADER, PackedEntries};
use shoal_format::inode::{Ino, S_IFDIR};

use crate::inodes::{ENTRY_PACKED, FOLLOWED, FOLLOWING, Inodes};
use crate::region::Region;
use crate::remedy::Remedy;
use crate::report::{FindingKind, Report};
use crate::{CheckError, Progress, Stage, State};

const KIND_DIRECTORY: u8 = (S_IFDIR >> 12) as u8;
const ROOT: Ino = Ino::ROOT;
/// Deepest path that is reported.
const DEPTH_MAX: usize = 1024;
/// Findings of a list that get a path. Further findings name only the inode.
const PATHS_MAX: usize = 1000;

pub(crate) fn verify(state: &mut State, progress: &mut dyn FnMut(Progress)) {
    let State { inodes, report, spilled, .. } = state;
    for position in 0..inodes.states.len() {
        let known = inodes.states[position];
        if known.kind == 0 {
            continue;
        }
        let ino = inodes.ino(position);
        let mut error = |kind, sentence, remedy: Option<Remedy>| {
            report.error(kind, Some(ino), None, sentence);
            remedy.into_iter().for_each(|remedy| report.offer(remedy));
        };
        if known.kind != KIND_DIRECTORY {
            // The spill file has one link and no name.
            let links = known.links + u32::from(ino == spilled.file);
            if links != known.nlink {
                let sentence = format!("link count is {}, directories name it {} times", known.nlink, known.links);
                let remedy = match links {
                    0 => Remedy::Attach { ino },
                    nlink => Remedy::LinkCount { ino, nlink },
                };
                error(FindingKind::LinkCount, sentence, Some(remedy));
            }
            continue;
        }
        let links_expected = u32::from(ino != ROOT && known.nlink > 0);
        if known.links > links_expected {
            let sentence = format!("a directory with {} entries that name it, expected {links_expected}", known.links);
            error(FindingKind::DirectoryLinks, sentence, None);
        } else if known.links < links_expected {
            let sentence = format!("a directory with link count {} that no entry names", known.nlink);
            error(FindingKind::LinkCount, sentence, Some(Remedy::Attach { ino }));
        }
        if known.nlink > 0 && known.nlink as u64 != 2 + known.subdirectories as u64 {
            let sentence = format!("link count is {}, it has {} subdirectories", known.nlink, known.subdirectories);
            let remedy = Remedy::LinkCount { ino, nlink: known.subdirectories.saturating_add(2) };
            error(FindingKind::LinkCount, sentence, Some(remedy));
        }
        follow(inodes, ino, report);
    }
    let total = state.inodes.states.len() as u64;
    progress(Progress { stage: Stage::Links, done: total, total });
}

/// Follows the path up from a directory to the root, to an end that is reported elsewhere, or to a
/// cycle.
fn follow(inodes: &mut Inodes, start: Ino, report: &mut Report) {
    let up = |inodes: &Inodes, ino: Ino| {
        inodes.state(ino).filter(|known| ino != ROOT && known.entry_at != Offset::ZERO).map(|known| known.holder)
    };
    let mut next = Some(start);
    while let Some(ino) = next {
        let Some(known) = inodes.state_mut(ino) else { break };
        if known.marks & FOLLOWING != 0 {
            let sentence = "directories hold each other in a circle; no way leads to them from the root".to_string();
            report.error(FindingKind::DirectoryCycle, Some(ino), None, sentence);
            break;
        }
        if known.marks & FOLLOWED != 0 {
            break;
        }
        known.marks |= FOLLOWING | FOLLOWED;
        next = up(inodes, ino);
    }
    let mut next = Some(start);
    while let Some(ino) = next {
        let Some(known) = inodes.state_mut(ino).filter(|known| known.marks & FOLLOWING != 0) else { break };
        known.marks &= !FOLLOWING;
        next = up(inodes, ino);
    }
}

/// Adds to each finding the path of its inode.
pub(crate) fn name_findings(region: &Region<'_>, state: &mut State) -> Result<(), CheckError> {
    let State { inodes, report, .. } = state;
    let Report { errors, notes, .. } = report;
    for list in [errors, notes] {
        for finding in list.iter_mut().take(PATHS_MAX) {
            if let Some(ino) = finding.inode {
                finding.path = path(region, inodes, Ino::new(ino))?;
            }
        }
    }
    Ok(())
}

fn path(region: &Region<'_>, inodes: &Inodes, ino: Ino) -> Result<Option<String>, CheckError> {
    let mut names = Vec::new();
    let mut at = ino;
    while at != ROOT {
        let Some(known) = inodes.state(at).filter(|known| known.entry_at != Offset::ZERO && names.len() < DEPTH_MAX)
        else {
            return Ok(None);
        };
        let name = match known.marks & ENTRY_PACKED {
            0 => plain_name(region, known.entry_at)?,
            _ => packed_name(region, known.entry_at, at)?,
        };
        names.push(name);
        at = known.holder;
    }
    names.reverse();
    Ok(Some(format!("/{}", names.join("/"))))
}

/// Returns the name of the entry at this offset.
fn plain_name(region: &Region<'_>, at: Offset) -> Result<String, CheckError> {
    let length = region.bytes(at + (ENTRY_HEADER as u64 - 1), 1)?[0] as u64;
    let name = region.bytes(at + ENTRY_HEADER as u64, length)?;
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// Returns a name of the inode in the packed bucket at this offset, which has been read before.
fn packed_name(region: &Region<'_>, at: Offset, ino: Ino) -> Result<String, CheckError> {
    let used = region.bytes(at, 2)?;
    let bytes = region.bytes(at, u16::from_le_bytes([used[0], used[1]]).into())?;
    if let Ok(mut entries) = PackedEntries::new(&bytes) {
        while let Ok(Some(entry)) = entries.step() {
            if entry.ino == ino {
                return Ok(String::from_utf8_lossy(entry.name).into_owned());
            }
        }
    }
    Ok("?".to_string())
}
