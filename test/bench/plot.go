//go:build linux

package main

import (
	"bytes"
	"fmt"
)

// The plot: one panel for each kernel, side by side on the same scale; what an open+close costs more than without
// programs, against depth. Colours of the Okabe-Ito palette, which the colour-blind tell apart; every line is named at
// its end as well.
const (
	panelWidth, panelHeight = 300, 300
	marginLeft, marginTop   = 60, 50
	marginRight             = 130
	marginBottom            = 50
)

var drawn = []struct {
	state, label, colour string
	first                bool
}{
	{landlocked, "Landlock", "#d55e00", false},
	{jailed, "jail, first open", "#cc79a7", true},
	{jailed, "jail", "#0072b2", false},
	{outsideMany, "not in a jail", "#009e73", false},
	{empty, "empty program", "#777777", false},
}

func drawDepths(all []results) []byte {
	var b bytes.Buffer
	top := int64(0)
	for _, r := range all {
		for _, d := range drawn {
			for _, p := range r.line(d.state, d.first) {
				top = max(top, p.cost)
			}
		}
	}
	step := int64(1000)
	for top/step > 8 {
		step *= 2
	}
	top = (top + step - 1) / step * step
	width := len(all)*(marginLeft+panelWidth+marginRight) + 20
	height := marginTop + panelHeight + marginBottom
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, "<title>Instructions added to one open+close, by depth below the workspace</title>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	for i, r := range all {
		r.drawPanel(&b, i*(marginLeft+panelWidth+marginRight)+marginLeft, top, step)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

type point struct {
	depth int
	cost  int64
}

// line is what a state adds, by depth.
func (r results) line(state string, first bool) []point {
	var points []point
	for _, depth := range depths {
		op := openAt(depth)
		if first {
			op = firstAt(depth)
		}
		base, ok := r.Costs[none][op]
		cost, have := r.Costs[state][op]
		if ok && have {
			points = append(points, point{depth, cost - base})
		}
	}
	return points
}

func (r results) drawPanel(b *bytes.Buffer, left int, top, step int64) {
	deepest := depths[len(depths)-1]
	x := func(depth int) float64 { return float64(left) + float64(panelWidth*depth)/float64(deepest) }
	y := func(cost int64) float64 {
		return float64(marginTop+panelHeight) - float64(panelHeight*cost)/float64(top)
	}
	fmt.Fprintf(b, `<text x="%d" y="24" font-size="14" font-weight="bold">Linux %s</text>`+"\n", left, r.Kernel)
	fmt.Fprintf(b, `<text x="%d" y="40" fill="#555555">instructions added to one open+close</text>`+"\n", left)
	for cost := int64(0); cost <= top; cost += step {
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#dddddd"/>`+"\n", left, y(cost), left+panelWidth, y(cost))
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end" fill="#555555">%d</text>`+"\n", left-6, y(cost)+4, cost)
	}
	for _, depth := range depths {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle" fill="#555555">%d</text>`+"\n", x(depth), marginTop+panelHeight+18, depth)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle" fill="#555555">depth below the workspace</text>`+"\n", left+panelWidth/2, marginTop+panelHeight+38)
	lowest := float64(marginTop + panelHeight + 20) // labels are kept apart, from the top down
	var labels []float64
	for i := len(drawn) - 1; i >= 0; i-- {
		points := r.line(drawn[i].state, drawn[i].first)
		at := lowest
		if len(points) > 0 {
			at = min(lowest-14, y(points[len(points)-1].cost)+4)
		}
		lowest = at
		labels = append([]float64{at}, labels...)
	}
	for i, d := range drawn {
		points := r.line(d.state, d.first)
		if len(points) == 0 {
			continue
		}
		fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="2" points="`, d.colour)
		for _, p := range points {
			fmt.Fprintf(b, "%.1f,%.1f ", x(p.depth), y(p.cost))
		}
		b.WriteString(`"/>` + "\n")
		for _, p := range points {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x(p.depth), y(p.cost), d.colour)
		}
		last := points[len(points)-1]
		fmt.Fprintf(b, `<text x="%d" y="%.1f" fill="%s">%s %d</text>`+"\n", left+panelWidth+8, labels[i], d.colour, d.label, last.cost)
	}
}
