//! Drawing of a plot's parts.
//!
//! Owns: strokes, dashes, markers, text, axes, legend, and each kind of series. Rules: all is black
//! on white but the series and the pale grid. A line stops at a point that has no place and begins
//! again after it. Intervals lie under the markers. Left out: where the parts stand (`layout`), and
//! how series differ (`look`).

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::Axis;
use super::layout::{LABEL, LINE, Layout, NAME_GAP, SAMPLE, SMALL, TITLE};
use super::look::{Look, RADIUS};
use super::{Kind, Plot, Series};

const GRID: RGBColor = RGBColor(225, 225, 225);
/// More points on a line than this have markers only now and then.
const MARKED_MAX: usize = 40;
const MARKERS_OF_MANY: usize = 10;
/// Share of a name's room on the axis that its points fill.
const FILLED: f64 = 0.7;
/// plotters writes a font's size divided by this.
const FONT: f64 = 1.24;

type Drawn = Result<(), String>;

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// How a text stands at its point.
#[derive(Clone, Copy)]
struct Writing {
    size: i32,
    is_bold: bool,
    is_upright: bool,
    pos: Pos,
}

impl Writing {
    fn small(h: HPos, v: VPos) -> Writing {
        Writing { size: SMALL, is_bold: false, is_upright: false, pos: Pos::new(h, v) }
    }
}

pub struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
    layout: &'a Layout,
}

impl<'a> Canvas<'a> {
    pub fn new(svg: &'a mut String, layout: &'a Layout) -> Result<Canvas<'a>, String> {
        let (width, height) = layout.size;
        let area = SVGBackend::with_string(svg, (width as u32, height as u32)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        Ok(Canvas { area, layout })
    }

    pub fn finish(self) -> Drawn {
        self.area.present().map_err(failed)
    }

    fn path(&self, points: Vec<(i32, i32)>, colour: RGBColor, width: u32) -> Drawn {
        self.area.draw(&PathElement::new(points, colour.stroke_width(width))).map_err(failed)
    }

    fn text(&self, text: &str, at: (i32, i32), writing: Writing) -> Drawn {
        let style = if writing.is_bold { FontStyle::Bold } else { FontStyle::Normal };
        let font = ("sans-serif", f64::from(writing.size) * FONT).into_font().style(style);
        let font = if writing.is_upright { font.transform(FontTransform::Rotate270) } else { font };
        self.area.draw_text(text, &font.color(&BLACK).pos(writing.pos), at).map_err(failed)
    }

    /// Draws a line with dashes.
    fn dashed(&self, points: &[(i32, i32)], dash: &[f64], colour: RGBColor) -> Drawn {
        if dash.is_empty() {
            return self.path(points.to_vec(), colour, 2);
        }
        dashes(points, dash).into_iter().try_for_each(|stroke| self.path(stroke, colour, 2))
    }

    fn marker(&self, (x, y): (i32, i32), look: &Look) -> Drawn {
        let corners: Vec<(i32, i32)> = look.marker.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
        let (fill, outline) = (if look.is_hollow { WHITE } else { look.colour }, look.colour.stroke_width(2));
        if corners.is_empty() {
            self.area.draw(&Circle::new((x, y), RADIUS, fill.filled())).map_err(failed)?;
            return if look.is_hollow {
                self.area.draw(&Circle::new((x, y), RADIUS, outline)).map_err(failed)
            } else {
                Ok(())
            };
        }
        let closed = corners.iter().chain(&corners[..1]).copied().collect();
        self.area.draw(&Polygon::new(corners, fill.filled())).map_err(failed)?;
        if look.is_hollow { self.path(closed, look.colour, 2) } else { Ok(()) }
    }

    /// Draws the title, the grid, the frame, and the axes with their labels.
    pub fn axes(&self, plot: &Plot, x: &Axis, y: &Axis) -> Drawn {
        let Layout { left, right, top, bottom, .. } = *self.layout;
        for (line, is_heading, at) in &self.layout.title {
            let size = if *is_heading { TITLE } else { SMALL };
            let writing = Writing { size, is_bold: *is_heading, ..Writing::small(HPos::Left, VPos::Top) };
            self.text(line, (left, *at), writing)?;
        }
        for tick in &x.ticks {
            let at = self.layout.pixel((tick.share, 0.0)).0;
            let is_small = tick.label.is_empty();
            if !is_small {
                self.path(vec![(at, top), (at, bottom)], GRID, 1)?;
                self.text(&tick.label, (at, bottom + 9), Writing::small(HPos::Center, VPos::Top))?;
            }
            self.path(vec![(at, bottom), (at, bottom + if is_small { 3 } else { 6 })], BLACK, 1)?;
        }
        for tick in &y.ticks {
            let at = self.layout.pixel((0.0, tick.share)).1;
            let is_small = tick.label.is_empty();
            if !is_small {
                self.path(vec![(left, at), (right, at)], GRID, 1)?;
                self.text(&tick.label, (left - 10, at), Writing::small(HPos::Right, VPos::Center))?;
            }
            self.path(vec![(left - if is_small { 3 } else { 6 }, at), (left, at)], BLACK, 1)?;
        }
        self.names()?;
        self.area.draw(&Rectangle::new([(left, top), (right, bottom)], BLACK)).map_err(failed)?;
        if let Some(apart) = x.after_zero() {
            self.axis_break(self.layout.pixel((apart, 0.0)))?;
        }
        let label = Writing { size: LABEL, ..Writing::small(HPos::Center, VPos::Top) };
        self.text(&plot.x, ((left + right) / 2, self.layout.x_label), label)?;
        let label = Writing { is_upright: true, pos: Pos::new(HPos::Center, VPos::Center), ..label };
        self.text(&plot.y, (self.layout.y_label, (top + bottom) / 2), label)
    }

    /// Writes the names below the x axis, and separates their rooms.
    fn names(&self) -> Drawn {
        let Layout { left, right, top, bottom, ref names, are_names_upright, .. } = *self.layout;
        let count = names.len() as i32;
        for (number, lines) in (0..).zip(names) {
            let edge = left + (right - left) * number / count;
            if number > 0 {
                self.path(vec![(edge, top), (edge, bottom + 6)], GRID, 1)?;
            }
            let middle = left + (right - left) * (2 * number + 1) / (2 * count);
            for (at, line) in (0..).zip(lines) {
                if are_names_upright {
                    let at = middle + at * LINE - (lines.len() as i32 - 1) * LINE / 2;
                    let writing = Writing { is_upright: true, ..Writing::small(HPos::Right, VPos::Center) };
                    self.text(line, (at, bottom + 9), writing)?;
                } else {
                    let writing = Writing::small(HPos::Center, VPos::Top);
                    self.text(line, (middle, bottom + 9 + at * LINE), writing)?;
                }
            }
        }
        Ok(())
    }

    /// Draws two slanted strokes over a gap in the x axis.
    fn axis_break(&self, (x, y): (i32, i32)) -> Drawn {
        self.path(vec![(x - 3, y), (x + 3, y)], WHITE, 3)?;
        [-3, 3].into_iter().try_for_each(|at| self.path(vec![(x + at - 2, y + 6), (x + at + 2, y - 6)], BLACK, 1))
    }

    pub fn legend(&self, series: &[&Series], looks: &[Look]) -> Drawn {
        let layout = self.layout;
        for ((series, look), entry) in series.iter().zip(looks).zip(&layout.entries) {
            let (left, right) = (layout.legend, layout.legend + SAMPLE - 8);
            let middle = entry.top + LINE / 2;
            match series.kind {
                // There are no lines between names.
                Kind::Line if !layout.names.is_empty() => {}
                Kind::Line | Kind::Steps => self.dashed(&[(left, middle), (right, middle)], look.dash, look.colour)?,
                Kind::PaperRange => {
                    // A range without width is a line.
                    let is_line = |corners: &[(f64, f64)]| corners[0].0 == corners[1].0 || corners[0].1 == corners[1].1;
                    let half = if series.points.chunks_exact(2).all(is_line) { 0 } else { 6 };
                    let is_filled = series.points.chunks_exact(2).any(is_endless);
                    self.range((left, middle - half), (right, middle + half), look, is_filled)?;
                }
                Kind::Points | Kind::Paper => {}
            }
            if !matches!(series.kind, Kind::Steps | Kind::PaperRange) {
                self.marker(((left + right) / 2, middle), look)?;
            }
            for (at, line) in (0..).zip(&entry.lines) {
                let writing = Writing::small(HPos::Left, VPos::Center);
                self.text(line, (layout.legend + SAMPLE, middle + at * LINE), writing)?;
            }
            debug_assert!(entry.top + NAME_GAP <= layout.bottom);
        }
        Ok(())
    }

    /// Draws the outline of a range, or a line if one of its sides has no length. One without an end
    /// is filled; others may lie over each other.
    fn range(&self, from: (i32, i32), to: (i32, i32), look: &Look, is_filled: bool) -> Drawn {
        let is_line = from.0 == to.0 || from.1 == to.1;
        if is_filled && !is_line {
            let filled = look.colour.mix(0.1).filled();
            self.area.draw(&Rectangle::new([from, to], filled)).map_err(failed)?;
        }
        let corners = [from, (to.0, from.1), to, (from.0, to.1), from];
        let dash = if look.dash.is_empty() { &[5.0, 4.0] } else { look.dash };
        let side = [from, to];
        self.dashed(if is_line { &side } else { &corners }, dash, look.colour)
    }

    /// Draws one of all series.
    pub fn series(&self, all: &[&Series], number: usize, look: &Look, x: &Axis, y: &Axis) -> Drawn {
        let series = all[number];
        if series.kind == Kind::PaperRange {
            return series.points.chunks_exact(2).try_for_each(|corners| {
                let pixel = |at: (f64, f64)| self.layout.pixel((x.bound(at.0), y.bound(at.1)));
                self.range(pixel(corners[0]), pixel(corners[1]), look, is_endless(corners))
            });
        }
        let names = self.layout.names.len();
        let aside = |at: f64| if names == 0 { 0.0 } else { aside(all, number, at) };
        let at = |value: (f64, f64)| Some((x.share(value.0 + aside(value.0))?, y.share(value.1)?));
        let places: Vec<Option<(f64, f64)>> = series.points.iter().map(|point| at(*point)).collect();
        let pixels: Vec<Option<(i32, i32)>> = places.iter().map(|at| at.map(|at| self.layout.pixel(at))).collect();
        for (at, (low, high)) in pixels.iter().zip(&series.intervals) {
            if let Some((x, _)) = *at
                && low < high
            {
                let [low, high] = [*low, *high].map(|value| self.layout.pixel((0.0, y.bound(value))).1);
                self.path(vec![(x, low), (x, high)], look.colour, 1)?;
                [low, high].into_iter().try_for_each(|y| self.path(vec![(x - 4, y), (x + 4, y)], look.colour, 1))?;
            }
        }
        match series.kind {
            Kind::Steps => return self.steps(&series.points, x, y, look),
            Kind::Line if names == 0 => {
                let parts = pixels.split(Option::is_none).map(|part| part.iter().flatten().copied().collect());
                parts
                    .filter(|part: &Vec<_>| part.len() > 1)
                    .try_for_each(|part| self.dashed(&part, look.dash, look.colour))?;
            }
            _ => {}
        }
        let is_sparse = series.kind == Kind::Line && pixels.len() > MARKED_MAX;
        let every = if is_sparse { pixels.len() / MARKERS_OF_MANY } else { 1 };
        // Markers of neighbouring series would cover each other.
        let first = number * every / all.len();
        let marked = |at: usize| {
            let is_alone = (at == 0 || pixels[at - 1].is_none()) && pixels.get(at + 1).is_none_or(Option::is_none);
            at % every == first || at + 1 == pixels.len() || is_alone
        };
        let marked = pixels.iter().enumerate().filter(|(at, _)| marked(*at));
        marked.filter_map(|(_, pixel)| *pixel).try_for_each(|pixel| self.marker(pixel, look))
    }

    /// Draws the outline of buckets whose middles are the points. An empty one interrupts it.
    fn steps(&self, points: &[(f64, f64)], x: &Axis, y: &Axis, look: &Look) -> Drawn {
        for part in outlines(points, x, y) {
            let pixels: Vec<(i32, i32)> = part.into_iter().map(|at| self.layout.pixel(at)).collect();
            self.dashed(&pixels, look.dash, look.colour)?;
        }
        Ok(())
    }
}

/// Returns how far from the middle of a name a series stands, among those with a point there.
fn aside(all: &[&Series], number: usize, at: f64) -> f64 {
    let has_point = |series: &&&Series| series.points.iter().any(|(x, _)| *x == at);
    let before = all[..number].iter().filter(has_point).count() as f64;
    let count = all.iter().filter(has_point).count().max(1) as f64;
    // A few series stay close together.
    FILLED.min(0.2 * count) * ((before + 0.5) / count - 0.5)
}

fn is_endless(corners: &[(f64, f64)]) -> bool {
    corners.iter().any(|(x, y)| x.is_infinite() || y.is_infinite())
}

/// Returns the outlines of runs of filled buckets, as places on the axes. An edge lies halfway
/// between the middles of two neighbours.
pub fn outlines(points: &[(f64, f64)], x: &Axis, y: &Axis) -> Vec<Vec<(f64, f64)>> {
    let middles: Vec<f64> = points.iter().filter_map(|point| x.share(point.0)).collect();
    if middles.len() != points.len() || middles.len() < 2 {
        return vec![];
    }
    let edge = |at: usize| match at {
        0 => middles[0] - (middles[1] - middles[0]) / 2.0,
        _ if at == middles.len() => middles[at - 1] + (middles[at - 1] - middles[at - 2]) / 2.0,
        _ => (middles[at - 1] + middles[at]) / 2.0,
    };
    let (mut parts, mut part): (Vec<Vec<_>>, Vec<_>) = (vec![], vec![]);
    for (at, point) in points.iter().enumerate() {
        match y.share(point.1).filter(|_| point.1 > 0.0) {
            Some(height) => {
                if part.is_empty() {
                    part.push((edge(at).max(0.0), 0.0));
                }
                part.extend([(edge(at).max(0.0), height), (edge(at + 1).min(1.0), height)]);
            }
            None if !part.is_empty() => {
                part.push((edge(at), 0.0));
                parts.push(std::mem::take(&mut part));
            }
            None => {}
        }
    }
    if !part.is_empty() {
        part.push((edge(points.len()).min(1.0), 0.0));
        parts.push(part);
    }
    parts
}

/// Cuts a line into strokes.
fn dashes(points: &[(i32, i32)], dash: &[f64]) -> Vec<Vec<(i32, i32)>> {
    let (mut strokes, mut stroke) = (vec![], vec![]);
    let (mut at, mut left) = (0, dash[0]);
    for pair in points.windows(2) {
        let [from, to] = [pair[0], pair[1]].map(|(x, y)| (f64::from(x), f64::from(y)));
        let length = (to.0 - from.0).hypot(to.1 - from.1);
        let pixel = |gone: f64| {
            let along = |from: f64, to: f64| (from + (to - from) * gone / length).round() as i32;
            (along(from.0, to.0), along(from.1, to.1))
        };
        let mut gone = 0.0;
        if at % 2 == 0 && stroke.is_empty() {
            stroke.push(pair[0]);
        }
        while length - gone > left {
            gone += left;
            if at % 2 == 0 {
                stroke.push(pixel(gone));
                strokes.push(std::mem::take(&mut stroke));
            } else {
                stroke = vec![pixel(gone)];
            }
            at = (at + 1) % dash.len();
            left = dash[at];
        }
        left -= length - gone;
        if at % 2 == 0 {
            stroke.push(pair[1]);
        }
    }
    if stroke.len() > 1 {
        strokes.push(stroke);
    }
    strokes
}
