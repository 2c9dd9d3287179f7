// SPDX-License-Identifier: MIT OR Apache-2.0
// A spiral of mirror balls over water, under two area lights.
#version 3.7;
global_settings { assumed_gamma 1.0 max_trace_level 10 }
background { rgb <0.35, 0.5, 0.8> }
camera { location <0, 9, -18> look_at <0, 2, 0> angle 50 }

#declare Lamp = light_source {
  0, rgb 0.8
  area_light <2, 0, 0>, <0, 2, 0>, 5, 5 adaptive 1 jitter
}
object { Lamp translate <14, 22, -16> }
object { Lamp translate <-18, 16, -8> }

plane {
  y, 0
  pigment { rgb <0.1, 0.2, 0.25> }
  normal { bumps 0.15 scale 0.8 }
  finish { reflection 0.45 specular 0.4 }
}

#local Tint = seed(4711);
#for (I, 0, 159)
  #local Turn = I * 0.39;
  #local Reach = 1.2 + I * 0.055;
  sphere {
    <Reach * cos(Turn), 0.6 + 4 * abs(sin(I * 0.11)), Reach * sin(Turn)>, 0.45
    pigment { rgb <rand(Tint), rand(Tint), rand(Tint)> }
    finish { ambient 0.05 diffuse 0.5 reflection 0.4 specular 0.8 roughness 0.01 }
  }
#end
