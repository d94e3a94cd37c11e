//! How the series of a plot differ: colour, marker and dash.
//!
//! Owns: sixteen of each, and the rule which series gets which. Rules: no two of the first sixteen
//! series share a colour, a marker or a dash, so a plot can be read without colours, too. Every
//! colour has a contrast of at least 3 to 1 on white. The paper's series look like the series of
//! ours that they are named after, but hollow; without such a series they are black. Left out:
//! drawing.

use plotters::style::RGBColor;

use super::{Kind, PAPER, Series};

/// Looks that differ.
pub const LOOKS: usize = 16;

/// The first eight are those of Okabe and Ito that colour-blind readers can tell apart, the pale
/// ones darkened.
const COLOURS: [RGBColor; LOOKS] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 140, 100),
    RGBColor(190, 90, 150),
    RGBColor(185, 125, 0),
    RGBColor(50, 145, 205),
    RGBColor(120, 120, 120),
    RGBColor(51, 34, 136),
    RGBColor(136, 34, 60),
    RGBColor(100, 110, 20),
    RGBColor(90, 50, 20),
    RGBColor(0, 75, 60),
    RGBColor(200, 20, 120),
    RGBColor(70, 90, 120),
    RGBColor(160, 60, 30),
];

/// Lengths of strokes and gaps in turn (pixels). Empty means a solid line.
const DASHES: [&[f64]; LOOKS] = [
    &[],
    &[9.0, 4.0],
    &[2.0, 3.0],
    &[9.0, 3.0, 2.0, 3.0],
    &[16.0, 4.0],
    &[5.0, 5.0],
    &[9.0, 3.0, 2.0, 3.0, 2.0, 3.0],
    &[16.0, 3.0, 5.0, 3.0],
    &[2.0, 6.0],
    &[24.0, 6.0],
    &[5.0, 2.0],
    &[16.0, 3.0, 2.0, 3.0],
    &[9.0, 8.0],
    &[5.0, 3.0, 2.0, 3.0],
    &[16.0, 3.0, 2.0, 3.0, 2.0, 3.0],
    &[12.0, 2.0, 5.0, 2.0, 5.0, 2.0],
];

/// Corners of a marker around its point (pixels). Empty means a circle.
pub type Corners = &'static [(i32, i32)];

/// Radius of the round marker.
pub const RADIUS: i32 = 5;

const MARKERS: [Corners; LOOKS] = [
    &[],
    // Square, triangle, diamond, triangle on its tip.
    &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
    &[(0, -6), (5, 4), (-5, 4)],
    &[(0, -7), (5, 0), (0, 7), (-5, 0)],
    &[(0, 6), (5, -4), (-5, -4)],
    // Plus, triangle to the left, cross, triangle to the right.
    &[(-2, -6), (2, -6), (2, -2), (6, -2), (6, 2), (2, 2), (2, 6), (-2, 6), (-2, 2), (-6, 2), (-6, -2), (-2, -2)],
    &[(-6, 0), (4, -5), (4, 5)],
    &[(0, -2), (3, -5), (5, -3), (2, 0), (5, 3), (3, 5), (0, 2), (-3, 5), (-5, 3), (-2, 0), (-5, -3), (-3, -5)],
    &[(6, 0), (-4, -5), (-4, 5)],
    // Pentagon, hourglass, star, bow tie.
    &[(0, -6), (6, -1), (4, 5), (-4, 5), (-6, -1)],
    &[(-5, -5), (5, -5), (-5, 5), (5, 5)],
    &[(0, -8), (2, -2), (8, 0), (2, 2), (0, 8), (-2, 2), (-8, 0), (-2, -2)],
    &[(-5, -5), (5, 5), (5, -5), (-5, 5)],
    // Lying and standing bar, hexagon.
    &[(-7, -2), (7, -2), (7, 2), (-7, 2)],
    &[(-2, -7), (2, -7), (2, 7), (-2, 7)],
    &[(-3, -5), (3, -5), (6, 0), (3, 5), (-3, 5), (-6, 0)],
];

/// The look of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    pub colour: RGBColor,
    pub marker: Corners,
    pub dash: &'static [f64],
    pub is_hollow: bool,
}

impl Look {
    fn number(number: usize) -> Look {
        let at = number % LOOKS;
        Look { colour: COLOURS[at], marker: MARKERS[at], dash: DASHES[at], is_hollow: false }
    }
}

/// Returns the look of each series.
pub fn looks(all: &[Series]) -> Vec<Look> {
    let is_paper = |series: &Series| matches!(series.kind, Kind::Paper | Kind::PaperRange);
    let ours: Vec<&Series> = all.iter().filter(|series| !is_paper(series)).collect();
    let (mut own, mut strange) = (0, 0);
    let next = |count: &mut usize| {
        *count += 1;
        Look::number(*count - 1)
    };
    let look = |series: &Series| {
        if !is_paper(series) {
            return next(&mut own);
        }
        let name = series.name.strip_prefix(PAPER).unwrap_or(&series.name);
        // A remark in brackets, as of which program it is, is no part of a name.
        let bare = |of: &Series| of.name.split(" (").next().unwrap_or("").to_string();
        let named = ours.iter().enumerate().filter(|(_, of)| !of.name.is_empty() && name.starts_with(&bare(of)));
        match named.max_by_key(|(_, of)| of.name.len()) {
            Some((at, _)) => Look { is_hollow: true, ..Look::number(at) },
            None => Look { colour: COLOURS[0], is_hollow: true, ..next(&mut strange) },
        }
    };
    all.iter().map(look).collect()
}
