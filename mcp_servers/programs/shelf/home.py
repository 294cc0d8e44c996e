"""Services of a house and its residents. `descriptions.py` explains their format."""

DESCRIPTIONS = """
service lights | Lamps that can be switched from afar.
record lamp LA name
name mix(kitchen|hall|garden|desk|bedroom, lamp|spot|strip|lantern) | What the family calls it.
brightness int(1..100) | Per cent.
colour one(warm|neutral|cold|red|blue) | Colour of the light.
off_after_min int(0..240) | Minutes until it goes off by itself, 0 for never.
states on off
find_lamp find | Look a lamp up by what the family calls it.
get_lamp get | Brightness, colour and timer of one lamp.
list_lamps list colour | Lamps, all or of one colour.
dim_lamp set brightness | Make a lamp brighter or darker.
set_lamp_colour set colour | Let a lamp shine in another colour.
set_lamp_timer set off_after_min | Let a lamp go off by itself after some minutes.
switch_lamp_on move off on | Light a lamp.
switch_lamp_off move on off | Put a lamp out.

service heating | Thermostats of the rooms.
record thermostat TH room
room mix(upper|lower|front|back|little, bath|bedroom|study|kitchen) | Which room.
target_celsius int(12..26) | Wanted temperature.
night_celsius int(10..20) | Temperature at night.
schedule one(always|workdays|weekend|holiday) | When it heats.
states heating idle off
find_thermostat find | Look a thermostat up by its room.
get_thermostat get | Wanted temperatures and schedule of one room.
list_thermostats list schedule | Thermostats, all or of one schedule.
set_temperature set target_celsius | Make a room warmer or colder by day.
set_night_temperature set night_celsius | Make a room warmer or colder at night.
set_heating_schedule set schedule | Heat a room on other days.
turn_heating_off move heating,idle off | Heat a room no more.
turn_heating_on move off,idle heating | Heat a room.

service pantry | Food in the cupboard and the fridge.
record food FD name
name mix(red|brown|dried|frozen|canned, lentils|rice|beans|berries|tomatoes) | What it is.
portions int(0..20) | How many are left.
best_before day | Until when it is good.
place one(fridge|freezer|shelf|cellar) | Where it is.
states fine low spoiled
find_food find | Look something to eat up by name.
get_food get | Portions, date and place of one food.
list_food list place | Things to eat, all or in one place.
store_food create name,portions,best_before,place | Put something newly bought away.
eat_food take portions | Use portions of a food up.
refill_food add portions | Add portions of a food.
move_food set place | Put a food elsewhere.
throw_food_away move fine,low spoiled | Note that a food went bad.

service recipes | The family's cook book.
record recipe RE title
title mix(Grandma's|Quick|Spicy|Sunday|Green, soup|stew|curry|pie|salad) | Name of the dish.
servings int(1..12) | For how many people.
cooking_min int(5..180) | Minutes until it is on the table.
course one(starter|main|dessert) | When it is eaten.
cook person | Whose recipe it is.
states tried untried favourite
find_recipe find | Look a dish up by name.
get_recipe get | Servings, time, course and cook of one dish.
list_recipes list course | Dishes, all or of one course.
write_recipe create title,servings,cooking_min,course,cook | Add a dish to the cook book.
scale_recipe set servings | Write a dish down for more or fewer people.
set_cooking_time set cooking_min | Correct how many minutes a dish takes.
credit_recipe set cook | Say whose recipe a dish is.
mark_favourite move tried,untried favourite | Note that the family loves a dish.

service chores | Who cleans what, and when.
record chore CH task
task mix(sweep|wipe|tidy|air|scrub, stairs|windows|garage|attic|oven) | What is to be done.
person person | Whose turn it is.
every_days int(1..30) | How often.
next_day day | When next.
states due done skipped
find_chore find | Look a household duty up by what is to be done.
get_chore get | Person, rhythm and next day of one household duty.
list_chores list person | Household duties, all or of one person.
add_chore create task,person,every_days,next_day | Agree on a new household duty.
give_chore set person | Make it somebody else's turn.
set_chore_rhythm set every_days | Do a household duty more or less often.
put_chore_off set next_day | Do a household duty on another day.
finish_chore move due done | Note that a household duty was done.
skip_chore move due skipped | Leave a household duty out this time.

service plants | Plants in house and garden.
record plant PT name
name mix(old|tall|white|climbing|tiny, fern|rose|cactus|ivy|orchid) | What the family calls it.
water_ml int(50..900) | Millilitres each time.
water_every_days int(1..21) | How often.
spot mix(south|north|kitchen|bath, window|corner|balcony) | Where it stands.
states healthy thirsty sick
find_plant find | Look a plant up by name.
get_plant get | Water, rhythm and spot of one plant.
list_plants list spot | Plants, all or in one spot.
add_plant create name,water_ml,water_every_days,spot | Note a new plant.
set_water_amount set water_ml | Give a plant more or less water each time.
set_watering_rhythm set water_every_days | Water a plant more or less often.
repot_plant set spot | Move a plant to another spot.
water_plant move thirsty healthy | Give a dry plant water now.
report_sick_plant move healthy,thirsty sick | Note that a plant has lice or brown leaves.

service appliances | Machines in the house and their warranty.
record appliance AP name
name mix(silver|white|black, washer|fridge|oven|dryer|dishwasher) | What it is.
maker mix(Volt|Therm|Aqua, Werk|Matic|Tec) | Who has built it.
bought day | When.
warranty_months int(6..60) | How long the maker repairs it for nothing.
technician person | Who repairs it.
states working broken scrapped
find_appliance find | Look a household machine up by name.
get_appliance get | Maker, purchase, warranty and technician of one household machine.
list_appliances list maker | Household machines, all or of one maker.
register_appliance create name,maker,bought,warranty_months,technician | Note a household machine that was bought.
extend_warranty set warranty_months | Let the maker repair a household machine for longer.
choose_technician set technician | Have somebody else repair a household machine.
report_breakdown move working broken | Note that a household machine does not work.
confirm_repair move broken working | Note that a household machine works again.

service subscriptions | Magazines, films and clubs that are paid every month.
record subscription SU name
name mix(Daily|Movie|Music|Chess|Garden, Club|Times|Box|Stream) | What is paid for.
monthly money(3..60) | Euros a month.
payer person | Who pays.
renews day | When it goes on by itself.
states running cancelled paused
find_subscription find | Look a subscription up by name.
get_subscription get | Price, payer and renewal of one subscription.
list_subscriptions list payer | Subscriptions, all or of one payer.
subscribe create name,monthly,payer,renews | Begin to pay for something every month.
change_plan_price set monthly | Pay another price a month for a subscription.
change_payer set payer | Have somebody else pay for a subscription.
pause_subscription move running paused | Interrupt a subscription.
cancel_subscription move running,paused cancelled | End a subscription.

service doors | Smart locks and who may open them.
record lock LK door
door mix(front|back|garage|cellar|garden, door|gate|hatch) | Which door.
code_length int(4..8) | Digits of its code.
keyholder person | Who has the spare key.
auto_lock_s int(0..300) | Seconds until it locks by itself.
states locked unlocked jammed
find_lock find | Look a smart lock up by its door.
get_lock get | Code length, keyholder and timer of one smart lock.
list_locks list keyholder | Smart locks, all or of one keyholder.
entrust_spare_key set keyholder | Give the spare key of a door to somebody.
set_auto_lock set auto_lock_s | Let a door lock by itself after some seconds.
set_code_length set code_length | Ask for more or fewer digits at a door.
lock_door move unlocked locked | Shut a door.
unlock_door move locked unlocked | Open a door.
"""
