//! Where the parts of a picture stand.
//!
//! Owns: [`Layout`], the places of title, plot area, axes' labels and legend, in pixels. Rules: the
//! legend stands to the right of the plot area, so it never covers data. Text is wrapped before it
//! would leave its room, and the picture grows with its legend. Widths of text are estimates on the
//! high side, because the reader's font is not known. Left out: drawing.

use super::axis::Axis;
use super::{Plot, Series};

/// Sizes of text (pixels).
pub const TITLE: i32 = 19;
pub const LABEL: i32 = 16;
pub const SMALL: i32 = 14;
/// Distance of lines of small text.
pub const LINE: i32 = 19;

const MARGIN: i32 = 16;
const AREA: (i32, i32) = (620, 430);
/// Length of the sample of a series in the legend, with the gap after it.
pub const SAMPLE: i32 = 44;
const LEGEND_GAP: i32 = 20;
/// Longest line of a name in the legend (characters).
const LEGEND_CHARS: usize = 30;
/// Room between two names of the legend.
pub const NAME_GAP: i32 = 7;

/// Estimates the width of a text.
pub fn width(text: &str, size: i32) -> i32 {
    (text.chars().count() as f64 * f64::from(size) * 0.6).ceil() as i32
}

/// Breaks a text at spaces into lines of at most `chars` characters. A longer word has a line of
/// its own.
pub fn wrapped(text: &str, chars: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            *line = word.into();
        } else if line.chars().count() + 1 + word.chars().count() <= chars {
            *line += " ";
            *line += word;
        } else {
            lines.push(word.into());
        }
    }
    lines
}

/// A name of the legend, in lines, and the top of the first.
#[derive(Clone, Debug)]
pub struct Entry {
    pub lines: Vec<String>,
    pub top: i32,
}

#[derive(Clone, Debug)]
pub struct Layout {
    pub size: (i32, i32),
    /// Lines of the title and whether each is a heading, each with its top.
    pub title: Vec<(String, bool, i32)>,
    /// Edges of the plot area.
    pub left: i32,
    pub right: i32,
    pub top: i32,
    pub bottom: i32,
    /// Lines of each name on the x axis, and whether they stand upright.
    pub names: Vec<Vec<String>>,
    pub are_names_upright: bool,
    /// Top of the x axis's label, and the middle of the y axis's one.
    pub x_label: i32,
    pub y_label: i32,
    /// Left edge of the legend, and its entries.
    pub legend: i32,
    pub entries: Vec<Entry>,
}

impl Layout {
    pub fn of(plot: &Plot, series: &[&Series], y: &Axis) -> Layout {
        let widest = y.ticks.iter().map(|tick| width(&tick.label, SMALL)).max().unwrap_or(0);
        let y_label = MARGIN + LABEL / 2;
        let left = y_label + LABEL / 2 + 10 + widest + 10;
        let right = left + AREA.0;
        let legend = right + LEGEND_GAP;
        let lines = series.iter().map(|series| wrapped(&series.name, LEGEND_CHARS));
        let lines: Vec<Vec<String>> = lines.collect();
        let longest = lines.iter().flatten().map(|line| width(line, SMALL)).max().unwrap_or(0);
        let full = legend + SAMPLE + longest + MARGIN;

        let mut at = MARGIN;
        let mut title = vec![];
        for (number, part) in plot.title.split('\n').enumerate() {
            let size = if number == 0 { TITLE } else { SMALL };
            for line in wrapped(part, (f64::from(full - left - MARGIN) / (f64::from(size) * 0.6)) as usize) {
                title.push((line, number == 0, at));
                at += size + 6;
            }
        }
        let top = at + 10;
        let mut next = top;
        let entries: Vec<Entry> = lines
            .into_iter()
            .map(|lines| {
                let entry = Entry { top: next, lines };
                next += entry.lines.len() as i32 * LINE + NAME_GAP;
                entry
            })
            .collect();
        let bottom = (top + AREA.1).max(next);

        let slot = AREA.0 / plot.style.names.len().max(1) as i32;
        let chars = |room: i32| (f64::from(room) / (f64::from(SMALL) * 0.6)) as usize;
        let fits = |name: &String| name.split(' ').all(|word| width(word, SMALL) <= slot - 6);
        let are_names_upright = !plot.style.names.iter().all(fits);
        let room = if are_names_upright { 210 } else { slot - 6 };
        let names: Vec<Vec<String>> = plot.style.names.iter().map(|name| wrapped(name, chars(room))).collect();
        let below = match are_names_upright {
            true => names.iter().flatten().map(|line| width(line, SMALL)).max().unwrap_or(0),
            false => names.iter().map(Vec::len).max().unwrap_or(1) as i32 * LINE,
        };
        let x_label = bottom + 12 + below.max(LINE);
        let height = x_label + if plot.x.is_empty() { 0 } else { LABEL } + MARGIN;
        Layout {
            size: (full, height),
            title,
            left,
            right,
            top,
            bottom,
            names,
            are_names_upright,
            x_label,
            y_label,
            legend,
            entries,
        }
    }

    /// Returns the pixel of a place on both axes (0 to 1 each).
    pub fn pixel(&self, (x, y): (f64, f64)) -> (i32, i32) {
        let along = |from: i32, to: i32, share: f64| (f64::from(from) + f64::from(to - from) * share).round() as i32;
        (along(self.left, self.right, x), along(self.bottom, self.top, y))
    }
}
