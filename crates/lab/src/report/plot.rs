//! A line plot as SVG.
//!
//! Owns: axes, colours, markers, legend. Lines differ in both colour and marker. The y axis begins
//! at 0 unless it is logarithmic, because a truncated axis makes small differences look large.
//! Values that are not above 0 cannot appear on a logarithmic axis and are dropped. Left out: other
//! formats.

use plotters::prelude::*;

use super::ReportError;

const SIZE: (u32, u32) = (900, 560);
/// Colours that colour-blind readers can tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(204, 121, 167),
    RGBColor(150, 150, 150),
];

/// The appearance of points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    pub is_log_x: bool,
    pub is_log_y: bool,
    /// Whether points have no line through them.
    pub is_scatter: bool,
}

/// A line.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug)]
pub struct Plot {
    /// Part of the file's name.
    pub name: String,
    pub title: String,
    /// Labels of the axes, with their units.
    pub x: String,
    pub y: String,
    pub series: Vec<Series>,
    pub style: Style,
}

/// Labels a tick of a logarithmic axis with three digits.
fn power(exponent: f64) -> String {
    let value = 10f64.powf(exponent);
    let decimals = (2.0 - exponent.floor()).clamp(0.0, 9.0) as usize;
    let text = format!("{value:.decimals$}");
    if decimals == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_string() }
}

impl Plot {
    pub fn to_svg(&self) -> Result<String, ReportError> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|why| ReportError::Plot { name: self.name.clone(), why })?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), String> {
        let Style { is_log_x, is_log_y, is_scatter } = self.style;
        let has_place = move |(x, y): &(f64, f64)| !(is_log_x && *x <= 0.0 || is_log_y && *y <= 0.0);
        let placed =
            move |(x, y): (f64, f64)| (if is_log_x { x.log10() } else { x }, if is_log_y { y.log10() } else { y });
        let of = |series: &Series| -> Vec<(f64, f64)> {
            series.points.iter().copied().filter(has_place).map(placed).collect()
        };
        let points = || self.series.iter().flat_map(of);
        if points().any(|(x, y)| !x.is_finite() || !y.is_finite()) {
            return Err("a point is not a number".into());
        }
        let range = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
        };
        let ((left, right), (low, top)) = (range(&mut points().map(|p| p.0)), range(&mut points().map(|p| p.1)));
        if left > right {
            return Err("there is no point to draw".into());
        }
        let right = if right > left { right } else { left + 1.0 };
        // Leave room for the legend above the lines.
        let top = if top > 0.0 { top * 1.35 } else { 1.0 };
        let bottom = if is_log_y { low.min(0.0) } else { 0.0 };
        let label = |is_log: bool| move |value: &f64| if is_log { power(*value) } else { format!("{value}") };
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| text(&error))?;
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(left..right, bottom..top)
            .map_err(|error| text(&error))?;
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&label(is_log_x))
            .y_label_formatter(&label(is_log_y))
            .label_style(("sans-serif", 14))
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(|error| text(&error))?;
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let line = if is_scatter { vec![] } else { of(series) };
            let line = LineSeries::new(line, colour.stroke_width(2));
            let legend = chart.draw_series(line).map_err(|error| text(&error))?;
            legend
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 22, y)], colour.stroke_width(2)));
            let markers = of(series).into_iter();
            // Alternate filled and hollow markers, triangles and circles.
            let style = if index % 4 < 2 { colour.filled() } else { colour.stroke_width(2) };
            let drawn = if index % 2 == 0 {
                chart.draw_series(markers.map(|point| Circle::new(point, 4, style))).map(drop)
            } else {
                chart.draw_series(markers.map(|point| TriangleMarker::new(point, 6, style))).map(drop)
            };
            drawn.map_err(|error| text(&error))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font(("sans-serif", 14))
            .draw()
            .map_err(|error| text(&error))?;
        root.present().map_err(|error| text(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(series: Vec<Series>) -> Plot {
        Plot {
            name: "p".into(),
            title: "Figure <6>".into(),
            x: "extra space (%)".into(),
            y: "time (s)".into(),
            series,
            style: Style::default(),
        }
    }

    #[test]
    fn every_series_has_its_line_its_markers_and_its_name() {
        let series = |name: &str| Series { name: name.into(), points: vec![(5.0, 10.0), (50.0, 7.5), (100.0, 7.0)] };
        let svg = plot(vec![series("none"), series("adaptive, P=2")]).to_svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert_eq!(svg.matches("<circle").count(), 3);
        for text in ["none", "adaptive, P=2", "extra space (%)", "time (s)", "Figure &lt;6&gt;"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn a_logarithmic_axis_has_its_values_as_labels_and_no_place_for_zero() {
        let series = Series { name: "n".into(), points: vec![(0.0, 1.0), (1.0, 1.0), (1000.0, 100.0)] };
        let style = Style { is_log_x: true, is_log_y: true, is_scatter: true };
        let svg = Plot { style, ..plot(vec![series]) }.to_svg().unwrap();
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("1000") && !svg.contains("NaN"), "{svg}");
        assert_eq!([0.0, 1.0, 0.5, -1.0, 3.5].map(power), ["1", "10", "3.16", "0.1", "3162"]);
    }

    #[test]
    fn nothing_to_draw_is_an_error_and_a_single_point_is_not() {
        assert!(plot(vec![]).to_svg().is_err());
        assert!(plot(vec![Series { name: "n".into(), points: vec![(1.0, f64::NAN)] }]).to_svg().is_err());
        assert!(plot(vec![Series { name: "n".into(), points: vec![(1.0, 0.0)] }]).to_svg().is_ok());
    }
}
